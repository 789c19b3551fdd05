"""How much stands where: read for metrics, autoscaling and people, cheap however much there is.

Lengths come from Redis, which knows them without counting; ages, running runs and workers come
from Postgres, by indexes that hold only what is not ended. Nothing here walks a queue.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.sql import load

_SQL = load("depths")


@dataclass(frozen=True, slots=True)
class Rows:
    """What Postgres knows of one queue. `oldest_s` is None when nothing is due."""

    running: int = 0
    oldest_s: float | None = None
    workers: int = 0
    slots: int = 0


@dataclass(frozen=True, slots=True)
class Entries:
    """What Redis knows of one queue. `next_due_s` is None when nothing is delayed."""

    waiting: int
    processing: int
    delayed: int
    next_due_s: float | None


@dataclass(frozen=True, slots=True)
class Memory:
    """Of Redis, in bytes; `limit` 0: none."""

    used: int
    limit: int


@dataclass(frozen=True, slots=True)
class IndexAge:
    workspace: str
    version: int
    age_s: float


async def rows_by_queue(db: Database, *, stale_s: float) -> dict[str, Rows]:
    """Every queue that has running or queued runs or live workers (seen within `stale_s`)."""
    ages = {row[0]: float(row[1]) for row in await db.rows(_SQL["oldest"])}
    running = {row[0]: int(row[1]) for row in await db.rows(_SQL["running"])}
    found = await db.rows(_SQL["workers"], {"stale_s": stale_s})
    workers = {row[0]: (int(row[1]), int(row[2])) for row in found}
    return {
        queue: Rows(
            running.get(queue, 0),
            age if (age := ages.get(queue, -1.0)) >= 0 else None,
            *workers.get(queue, (0, 0)),
        )
        for queue in sorted({*ages, *running, *workers})
    }


async def entries_by_queue(redis: Queue, queues: Iterable[str]) -> dict[str, Entries]:
    """Entries of these queues. A probe that stands in a list is no run and is not counted."""
    found = {}
    for queue in queues:
        depths = await redis.depths(queue)
        probe, first, now = await redis.all(
            [
                ("EXISTS", redis.key(f"queue:{queue}:probe")),
                ("ZRANGE", redis.delayed(queue), "0", "0", "WITHSCORES"),
                ("TIME",),
            ]
        )
        found[queue] = Entries(
            waiting=max(0, depths.waiting - int(probe)),
            processing=depths.processing,
            delayed=depths.delayed,
            next_due_s=_wait(first, now),
        )
    return found


def _wait(first: list[object], now: tuple[int, int]) -> float | None:
    """Seconds until the first member of a delayed set; [] → None. Its shape differs by protocol."""
    if not first:
        return None
    score = first[1] if len(first) == 2 else first[0]
    if isinstance(score, list | tuple):
        score = score[1]
    return float(str(score)) - now[0] - now[1] / 1e6


async def dead_letters(db: Database) -> int:
    """Failed runs that nobody has dealt with, up to 100,000."""
    [(count,)] = await db.rows(_SQL["dead_letters"])
    return int(count)


async def index_ages(db: Database) -> list[IndexAge]:
    return [IndexAge(*row) for row in await db.rows(_SQL["indexes"])]


async def redis_memory(redis: Queue) -> Memory:
    [memory] = await redis.all([("INFO", "memory")])
    return Memory(int(memory["used_memory"]), int(memory.get("maxmemory", 0)))


async def redis_clock(redis: Queue) -> float:
    """Seconds since 1970 by Redis' clock."""
    [(seconds, microseconds)] = await redis.all([("TIME",)])
    return int(seconds) + int(microseconds) / 1e6
