"""Schedules that objects of a cluster own: their rows follow the objects, not the other way round.

A row has the uid of its object as its id, and the object is entered before its row is made: no
schedule goes on without its object for longer than a list takes. An object that was deleted makes
no row any more, whoever has not heard of it yet.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from psycopg.rows import dict_row

from researchcopilot.core.schedules import Schedule
from researchcopilot.storage.db import Database
from researchcopilot.storage.objects import Owner
from researchcopilot.storage.schedules import (
    name_taken,
    paused,
    read_row,
    resumed,
    row_params,
    starting,
)
from researchcopilot.storage.sql import load

_SQL = load("objects")
_ROWS = load("schedules")
# What the object says of its schedule; all the rest is the row's own.
SAID = (
    "name", "agent", "queue", "input", "metadata", "max_attempts", "timeout_s", "deadline_s",
    "cron", "timezone", "interval_s", "starts_at", "ends_at", "misfire", "overlap", "jitter_s",
)  # fmt: skip
TIMING = ("cron", "timezone", "interval_s", "starts_at", "ends_at")
_OURS = ("of_object", "acted_on", "asked")
# So long after an operator was last seen a schedule is still its object's.
HOLDS_S = 900.0


@dataclass(frozen=True, slots=True)
class Owned:
    """What was last acted upon for an object, and its row as it stands, if there is one."""

    acted_on: int
    asked: str | None
    schedule: Schedule | None


async def owned(db: Database, uids: Sequence[str]) -> dict[str, Owned]:
    """Of each of these objects for which something was done; one read."""
    rows = await db.dicts(_SQL["schedules"], {"uids": list(uids)})
    return {row["of_object"]: _owned(row) for row in rows}


def _owned(row: Mapping[str, Any]) -> Owned:
    fields = {name: value for name, value in row.items() if name not in _OURS}
    there = fields["schedule_id"] is not None
    return Owned(row["acted_on"], row["asked"], read_row(fields) if there else None)


def put_right(
    before: Schedule, wanted: Schedule, now: datetime, *, suspend: bool, anew: bool
) -> Schedule:
    """The row as its object wants it. New times count from now on. Raises BadInput if it would
    never fire. `anew`: the object asks for something else than before, so that what the product
    itself has paused gets another try."""
    after = replace(before, **{name: getattr(wanted, name) for name in SAID})
    if any(getattr(after, name) != getattr(before, name) for name in TIMING):
        after = starting(after, now)
    if suspend:
        return replace(paused(after, now), paused_why=None)
    if after.paused_at is not None and (anew or after.paused_why is None):
        return resumed(after, now)
    return replace(after, next_tick=None) if after.paused_at is not None else after


async def apply(
    db: Database, owner: Owner, wanted: Schedule, *, generation: int, asked: str, suspend: bool
) -> Schedule | None:
    """Make or put right the row of this object; None if the object is gone, or was changed since.
    Safe twice, and from two sides at once. Raises BadInput: a name that is taken, a rule that
    would never fire."""
    await db.execute(_SQL["enter"], asdict(owner))
    async with db.transaction() as connection:
        cursor = connection.cursor(row_factory=dict_row)
        entry = await (await cursor.execute(_SQL["lock"], {"uid": owner.uid})).fetchone()
        if entry is None or entry["gone_at"] is not None or entry["generation"] > generation:
            return None
        where = {"workspace_id": entry["workspace_id"], "schedule_id": owner.uid}
        row = await (await cursor.execute(_ROWS["lock"], where)).fetchone()
        if row is None:
            now = (await (await cursor.execute(_ROWS["now"])).fetchone() or {})["now"]
            fresh = replace(starting(wanted, now), created_at=now, updated_at=now)
            after = replace(paused(fresh, now), paused_why=None) if suspend else fresh
            made = await (await cursor.execute(_ROWS["insert"], row_params(after))).fetchone()
            if made is None:
                raise name_taken(wanted.name)
            if suspend:  # a row is not made paused
                await cursor.execute(_ROWS["update"], row_params(after))
        else:
            before, now = read_row(row), row["now"]
            anew = entry["asked"] != asked
            after = put_right(before, wanted, now, suspend=suspend, anew=anew)
            if after != before:
                await cursor.execute(_ROWS["update"], row_params(after))
        told = {"uid": owner.uid, "generation": generation, "asked": asked}
        await cursor.execute(_SQL["asked"], told)
        return after


async def seen(db: Database, uids: Sequence[str]) -> None:
    """An operator has seen these objects: their schedules are theirs for a while longer."""
    await db.execute(_SQL["seen"], {"uids": list(uids)})


async def remove_orphans(db: Database, cluster: str) -> int:
    """Schedules whose object is gone, with their ticks; their runs stay."""
    return await db.execute(_SQL["orphans"], {"cluster": cluster})


async def owner_of(db: Database, schedule_id: str) -> tuple[str, str] | None:
    """(namespace, name) of the RunSchedule that owns this schedule, if an operator serves it."""
    row = await db.one(_SQL["owner"], {"schedule_id": schedule_id, "holds_s": HOLDS_S})
    return (row["namespace"], row["name"]) if row else None
