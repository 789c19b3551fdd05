"""Workspaces: their names, and the zone in which their days begin and end."""

from dataclasses import dataclass, replace
from datetime import datetime

from researchcopilot.core.cron import check_zone
from researchcopilot.core.errors import NotFound
from researchcopilot.core.schedules import SYSTEM, Schedule
from researchcopilot.storage import schedules
from researchcopilot.storage.db import Database
from researchcopilot.storage.sql import load

_SQL = load("workspaces")


@dataclass(frozen=True, slots=True)
class Workspace:
    workspace_id: int
    name: str
    zone: str
    created_at: datetime


async def list_workspaces(db: Database) -> list[Workspace]:
    return [Workspace(**row) for row in await db.dicts(_SQL["list"])]


async def set_zone(db: Database, name: str, zone: str) -> Workspace:
    """The workspace in its new zone, with the product's schedules that keep its hours.

    Safe twice: what the first call had not done the second does. Raises NotFound and BadInput.
    """
    check_zone(zone)
    row = await db.one(_SQL["set_zone"], {"name": name, "zone": zone})
    if row is None:
        raise NotFound(f"There is no workspace {name!r}; `keys create --workspace` makes one.")
    workspace = Workspace(**row)
    local = [schedule.name for schedule in SYSTEM if schedule.timezone is None]
    params = {"workspace_id": workspace.workspace_id, "names": local}
    for (schedule_id,) in await db.rows(_SQL["schedules"], params):
        await schedules.change(
            db,
            workspace.workspace_id,
            schedule_id,
            lambda schedule, now: _moved(schedule, zone, now),
        )
    return workspace


def _moved(schedule: Schedule, zone: str, now: datetime) -> Schedule:
    """With the first tick from now in that zone, unless it is paused."""
    moved = replace(schedule, timezone=zone)
    if schedule.timezone == zone or schedule.paused_at is not None:
        return moved
    return replace(moved, next_tick=moved.timing.after(now))
