"""Schedules: their rows, their ticks, and the one move that deals with what is due.

A schedule's next tick is worked out in Python, from the time that the database gives. What is due
is read without a lock and planned; `fire` is one call that locks, looks again, and commits ticks,
runs and next ticks together, so that no process that stops in between can hold a row.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from psycopg import errors
from psycopg.rows import dict_row

from researchcopilot.core.errors import BadInput, Conflict
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Due, Entry, IdempotencyKey
from researchcopilot.core.schedules import Plan, Schedule, SystemSchedule, Tick, first_tick
from researchcopilot.core.states import Status
from researchcopilot.core.text import dumps
from researchcopilot.storage.db import Database
from researchcopilot.storage.sql import load

_SQL = load("schedules")
Edit = Callable[[Schedule, datetime], Schedule]


@dataclass(frozen=True, slots=True)
class Fired:
    """What became of one tick. `push` is set for a run that has to be pushed."""

    schedule_id: str
    tick: datetime
    outcome: str
    late_s: float
    push: Due | None = None


@dataclass(frozen=True, slots=True)
class Triggered:
    """`verdict`: fired, replayed (an earlier request's run), mismatch (its key, another request),
    busy (`run_id` has not ended, and overlap is skip)."""

    verdict: str
    run_id: str
    push: Due | None = None


# Firing


async def next_wait(db: Database) -> float | None:
    """Seconds until the next tick of any schedule, below zero if it is due; None without one."""
    [(wait_s,)] = await db.rows(_SQL["wait"])
    return None if wait_s is None else float(wait_s)


async def due(db: Database, limit: int) -> tuple[datetime | None, list[Schedule]]:
    """The database's time, and the schedules that are due by it, the most late ones first."""
    rows = await db.dicts(_SQL["due"], {"limit": limit})
    now = rows[0]["now"] if rows else None
    return now, [read_row(row) for row in rows]


async def fire(db: Database, plans: Sequence[Plan]) -> list[Fired]:
    """Deal with these ticks, in one transaction; see fire_1. Safe to send twice."""
    rows = await db.rows(_SQL["fire"], {"plans": dumps([_plan(plan) for plan in plans])})
    return [_fired(row) for row in rows]


def _plan(plan: Plan) -> dict[str, Any]:
    schedule = plan.schedule
    return {
        "schedule_id": schedule.schedule_id,
        "revision": schedule.revision,
        "expected": _iso(schedule.next_tick),
        "next_tick": _iso(plan.next_tick),
        "ticks": [
            {
                "tick": _iso(tick.tick),
                "run_id": new_id() if tick.fires else None,
                "jitter_s": random.uniform(0, schedule.jitter_s),
                "until": _iso(tick.until),
            }
            for tick in plan.ticks
        ],
    }


def _iso(time: datetime | None) -> str | None:
    return time.isoformat() if time else None


def _fired(row: tuple[Any, ...]) -> Fired:
    schedule_id, tick, outcome, run_id, workspace_id, queue, wait_s, late_s = row
    push = Due(queue, Entry(workspace_id, run_id), wait_s) if queue is not None else None
    return Fired(schedule_id, tick, outcome, late_s, push)


async def halt(db: Database, schedule: Schedule, why: str) -> bool:
    """Pause a schedule that cannot go on, and say why; False if somebody has changed it."""
    params = {"schedule_id": schedule.schedule_id, "revision": schedule.revision, "why": why}
    return bool(await db.execute(_SQL["halt"], params))


async def trigger(
    db: Database, workspace_id: int, schedule_id: str, key: IdempotencyKey | None
) -> Triggered | None:
    """Fire it now. None if there is no such schedule."""
    row = await db.one(
        _SQL["trigger"],
        {
            "workspace_id": workspace_id,
            "schedule_id": schedule_id,
            "run_id": new_id(),
            "route": key and key.route,
            "key": key and key.key,
            "body_hash": key and key.body_hash,
        },
    )
    if row is None:
        return None
    run_id, queue = row["run_id"], row["queue"]
    push = Due(queue, Entry(workspace_id, run_id)) if queue is not None else None
    return Triggered(row["verdict"], run_id, push)


# Rows


async def database_time(db: Database) -> datetime:
    [(now,)] = await db.rows(_SQL["now"])
    assert isinstance(now, datetime)
    return now


async def create(db: Database, new: Schedule) -> Schedule:
    """The schedule as it stands. `new` gives all but its times, which are the database's.

    Raises BadInput that names a field: a name that is taken, a rule that never fires.
    """
    now = await database_time(db)
    made = starting(new, now)
    made = replace(made, created_at=now, updated_at=now)
    if await db.one(_SQL["insert"], row_params(made)) is None:
        raise name_taken(new.name)
    return made


def name_taken(name: str) -> BadInput:
    return BadInput(
        f"is the name of a schedule of this workspace already: {name[:200]!r}; take another name, "
        "or change that one",
        field="name",
        code="duplicate",
    )


def starting(schedule: Schedule, now: datetime) -> Schedule:
    """With the anchor and the first tick of a rule that counts from now on. Raises BadInput."""
    anchor = schedule.starts_at or now.replace(microsecond=0)
    anchored = replace(schedule, anchor=anchor)
    return replace(anchored, next_tick=first_tick(anchored.timing, now))


def paused(schedule: Schedule, now: datetime) -> Schedule:
    """Paused; twice is once."""
    return replace(schedule, paused_at=schedule.paused_at or now, next_tick=None)


def resumed(schedule: Schedule, now: datetime) -> Schedule:
    """Goes on with the first tick from now; what was due meanwhile is not made up for."""
    if schedule.paused_at is None:
        return schedule
    return replace(schedule, paused_at=None, paused_why=None, next_tick=schedule.timing.after(now))


async def change(db: Database, workspace_id: int, schedule_id: str, edit: Edit) -> Schedule | None:
    """The schedule as `edit` has made it of the row and the database's time, under the row's lock.

    None if there is none. Raises what `edit` raises, then nothing is changed; BadInput for a name
    that is taken.
    """
    where = {"workspace_id": workspace_id, "schedule_id": schedule_id}
    async with db.transaction() as connection:
        cursor = connection.cursor(row_factory=dict_row)
        row = await (await cursor.execute(_SQL["lock"], where)).fetchone()
        if row is None:
            return None
        before = read_row(row)
        after = edit(before, row["now"])
        if after == before:
            return before
        try:
            await cursor.execute(_SQL["update"], row_params(after))
        except errors.UniqueViolation as error:
            raise name_taken(after.name) from error
        return replace(after, **(await cursor.fetchone() or {}))


async def delete(db: Database, workspace_id: int, schedule_id: str) -> bool:
    """With its history; its runs stay. False if there is none. Raises Conflict for the product's
    own."""
    where = {"workspace_id": workspace_id, "schedule_id": schedule_id}
    if await db.execute(_SQL["delete"], where):
        return True
    if await get(db, workspace_id, schedule_id) is None:
        return False
    raise Conflict("This schedule is the product's own: it can be paused, not deleted.")


async def get(db: Database, workspace_id: int, schedule_id: str) -> Schedule | None:
    row = await db.one(_SQL["get"], {"workspace_id": workspace_id, "schedule_id": schedule_id})
    return read_row(row) if row else None


async def list_schedules(
    db: Database, workspace_id: int, *, after: str | None, limit: int
) -> list[Schedule]:
    """By name, without inputs."""
    params = {"workspace_id": workspace_id, "after": after, "limit": limit}
    return [read_row(row) for row in await db.dicts(_SQL["list"], params)]


async def last_ticks(db: Database, schedule_ids: Sequence[str]) -> dict[str, Tick]:
    """The newest tick of each that has a run."""
    rows = await db.dicts(_SQL["last_ticks"], {"schedule_ids": list(schedule_ids)})
    return {row["schedule_id"]: _tick(row) for row in rows}


async def list_ticks(
    db: Database, workspace_id: int, schedule_id: str, *, before: datetime | None, limit: int
) -> list[Tick]:
    """Newest first."""
    rows = await db.dicts(
        _SQL["ticks"],
        {
            "workspace_id": workspace_id,
            "schedule_id": schedule_id,
            "before": before,
            "limit": limit,
        },
    )
    return [_tick(row) for row in rows]


# The product's own


async def ensure_system(db: Database, wanted: Sequence[SystemSchedule], limit: int = 500) -> int:
    """Make what a workspace lacks; how many were made. Safe twice and at once."""
    if not wanted:
        return 0
    names = {schedule.name: schedule for schedule in wanted}
    made = 0
    for workspace_id, name, zone in await db.rows(
        _SQL["lacking"], {"names": list(names), "limit": limit}
    ):
        try:
            await create(db, _of_the_product(names[name], workspace_id, zone))
            made += 1
        except BadInput:
            continue  # made by another scheduler in this moment
    return made


def _of_the_product(wanted: SystemSchedule, workspace_id: int, zone: str) -> Schedule:
    return Schedule(
        schedule_id=new_id(),
        workspace_id=workspace_id,
        name=wanted.name,
        agent=wanted.agent,
        input={},
        system=True,
        queue="system",
        max_attempts=wanted.max_attempts,
        unique_key=wanted.unique_key,
        cron=wanted.cron,
        timezone=wanted.timezone or zone,
        interval_s=wanted.interval_s,
        misfire=wanted.misfire,
    )


# Records


def read_row(row: Mapping[str, Any]) -> Schedule:
    """The schedule of a row, which may have the time beside it."""
    return Schedule(**{name: value for name, value in row.items() if name != "now"})


def row_params(schedule: Schedule) -> dict[str, Any]:
    """What the statements that write a row take."""
    fields = asdict(schedule)
    return {
        **fields,
        "input": dumps(schedule.input),
        "metadata": dumps(schedule.metadata),
    }


def _tick(row: dict[str, Any]) -> Tick:
    status = row["status"]
    return Tick(**{**row, "status": Status(status) if status else None})
