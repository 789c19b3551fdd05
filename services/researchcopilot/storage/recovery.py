"""What the janitor asks of the servers: which hints are lost, and how Redis is made whole again.

Nothing here moves a run: these are reads of Postgres and pushes to Redis, which may be repeated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Entry
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.sql import load

_SQL = load("recovery")
_WORKERS = load("workers")
PAGE = 1000


@dataclass(frozen=True, slots=True)
class Judged:
    """Where a dead worker's entry belongs: drop, head, or later (after `wait_s`)."""

    verdict: str
    wait_s: float = 0.0


async def judge(db: Database, run_ids: Sequence[str]) -> dict[str, Judged]:
    """A verdict for each id that exists; one that does not is dropped too."""
    rows = await db.rows(_SQL["judge"], {"run_ids": list(run_ids)})
    return {run_id: _judge(status, parked, wait) for run_id, status, parked, wait in rows}


def _judge(status: str, parked: bool, wait_s: float) -> Judged:
    # A running one is left to its lease, a parked one to unpark: both push it themselves.
    if status != "queued" or parked:
        return Judged("drop")
    return Judged("later", wait_s) if wait_s > 0 else Judged("head")


async def queues(db: Database) -> list[str]:
    """Every queue that holds queued runs or that somebody serves."""
    return sorted(row[0] for row in await db.rows(_SQL["queues"]))


async def database_time(db: Database) -> int:
    """Microseconds since 1970 by the database's clock."""
    [(microseconds,)] = await db.rows(_SQL["now"])
    return int(microseconds)


async def lost_pushes(
    db: Database, queue: str, before_us: int, limit: int = 500, *, spread_s: float = 0.0
) -> list[Entry]:
    """Runs that belong in the list since before that time, oldest first; marked as hinted.

    `spread_s`: what was sent to the head may be on its way for so long.
    """
    rows = await db.rows(
        _SQL["lost"],
        {
            "queue": queue,
            "before_us": before_us,
            "hinted_before_us": before_us - int(spread_s * 1_000_000),
            "limit": limit,
        },
    )
    return [Entry(row[1], row[0]) for row in sorted(rows, key=lambda row: row[2:])]


async def due_soon(db: Database, queue: str) -> list[tuple[Entry, float]]:
    """Delayed runs of a queue that are due within two minutes, with their waits."""
    found: list[tuple[Entry, float]] = []
    for (workspace_id,) in await db.rows(_SQL["workspaces"]):
        rows = await db.rows(_SQL["soon"], {"queue": queue, "workspace_id": workspace_id})
        found += [(Entry(row[1], row[0]), max(row[3], 0.0)) for row in rows]
    return found


async def sweep_begins(db: Database, name: str, away_s: float) -> float | None:
    """Note a sweep; the seconds since janitors were last away (for more than `away_s` none of them
    swept), by the database's clock; None: never."""
    await db.execute(_SQL["sweep"], {"name": name, "away_s": away_s})
    row = await db.one(_SQL["since_away"], {"name": name})
    return None if row is None else float(row["since_s"])


# Rebuild


async def is_known_redis(db: Database, redis: Queue) -> bool:
    """Is this the Redis, with the memory, that was last rebuilt?"""
    stored = await db.rows(_SQL["identity"])
    return bool(stored) and stored[0] == await redis.identity()


async def rebuild(db: Database, redis: Queue) -> int | None:
    """Write all lists and sets anew from Postgres; the number of entries.

    None if another janitor does it, or if Redis changed once more meanwhile: look again.
    The new identity is written only after the last page, so a death in between starts it anew.
    Runs that are submitted meanwhile are pushed by their submitters after the lists were deleted.
    """
    async with db.transaction() as connection:
        cursor = await connection.execute(_SQL["rebuild_lock"])
        mine = await cursor.fetchone()
        if mine is None or not mine[0]:
            return None
        mark = new_id()
        await redis.mark_epoch(mark)
        identity = await redis.identity()
        if identity[0] != mark:
            return None
        await redis.clear(await queues(db))
        await _forget_workers(db, redis)
        pushed = 0
        async with connection.cursor(name="all_queued") as pages:
            pages.itersize = PAGE
            await pages.execute(_SQL["all_queued"])
            while page := await pages.fetchmany(PAGE):
                await _push_page(redis, page)
                pushed += len(page)
        if await redis.identity() != identity:
            return None
        epoch, replid, run_id = identity
        await connection.execute(
            _SQL["save_identity"], {"epoch": epoch, "replid": replid, "redis_run_id": run_id}
        )
    return pushed


async def _forget_workers(db: Database, redis: Queue) -> None:
    """A file that is older than a day brings back workers whose rows were pruned since: nobody else
    looks at their hands. A worker has a row before it takes anything."""
    hands = await redis.all_hands()
    found = {worker_id for _, worker_id in hands} | set(await redis.workers())
    rows = await db.rows(_WORKERS["known"], {"worker_ids": list(found)})
    gone = found - {row[0] for row in rows}
    await redis.forget([hand for hand in hands if hand[1] in gone])
    await redis.leave(*gone)


async def _push_page(redis: Queue, page: Sequence[tuple[str, int, str, float]]) -> None:
    for queue, rows in groupby(sorted(page, key=lambda row: row[0]), key=lambda row: row[0]):
        members = [(Entry(row[1], row[2]), row[3]) for row in rows]
        await redis.push(queue, [entry for entry, wait in members if wait <= 0])
        later = [(entry, wait) for entry, wait in members if wait > 0]
        if later:
            await redis.delay(queue, later)
