"""Changes of a schedule as a PATCH says them, and the ticks to come of one that is only tried out.

Pure, but for asking what workers have registered. Held to the checks of a new schedule.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from researchcopilot.agents.new_schedules import (
    FIELDS,
    TIMES,
    check_name,
    check_rule,
    check_work,
    overlap_of,
)
from researchcopilot.api.operations import Call
from researchcopilot.api.problems import Fault, refuse
from researchcopilot.core.errors import BadInput, Conflict
from researchcopilot.core.faults import of_input
from researchcopilot.core.fields import Body, Field
from researchcopilot.core.schedules import Schedule, first_tick
from researchcopilot.core.schemas import Whole
from researchcopilot.storage.schedules import starting

SCHEDULE_CHANGES = Body(
    "ScheduleChanges",
    tuple(Field(f.name, f.kind, f"{f.doc}; null: as if not given") for f in FIELDS),
)
COUNT = Field("count", Whole(1, 100), "so many ticks", default=5)
PREVIEW = Body("SchedulePreview", (*TIMES, COUNT))

_DEFAULTS = {field.name: field.default for field in FIELDS}
_NEEDED = ("name", "input", "agent")
_TIMING = frozenset(field.name for field in TIMES)
# Of the product's own schedules a person may change when they fire, not what.
_OF_THE_PRODUCT = _TIMING | {"jitter_s", "misfire"}


def changes(said: Mapping[str, Any], fields: Mapping[str, Any], before: Schedule) -> dict[str, Any]:
    """What a PATCH changes: what it names, and null as if it had never been given."""
    faults = [
        Fault(f"$.{name}", "must not be null", "required")
        for name in _NEEDED
        if name in said and said[name] is None
    ]
    if faults:
        raise refuse(faults)
    found = {name: _DEFAULTS[name] if said[name] is None else fields[name] for name in said}
    if found.get("cron") is not None:
        found.setdefault("interval_s", None)
    if found.get("interval_s") is not None:
        found.setdefault("cron", None)
    misfire = found.get("misfire", before.misfire)
    if found.get("overlap", before.overlap) is None or (
        misfire == "all" and "overlap" not in found and not before.system
    ):
        found["overlap"] = overlap_of(misfire)
    if "metadata" in found:
        found["metadata"] = found["metadata"] or {}
    return found


async def check_changed(call: Call, before: Schedule, wanted: Mapping[str, Any]) -> None:
    """Raises the problem of everything in the changed schedule that is wrong."""
    if before.system and not wanted.keys() <= _OF_THE_PRODUCT:
        names = ", ".join(sorted(_OF_THE_PRODUCT))
        raise Conflict(f"This schedule is the product's own: only {names} can be changed.")
    faults: list[Fault] = []
    after = replace(before, **wanted)
    if after.name != before.name:
        check_name(after.name, faults)
    if wanted.keys() & {"agent", "input", "queue"}:
        await check_work(call.services.door, after, faults)
    check_rule(after, faults)
    if faults:
        raise refuse(faults)


def changed(before: Schedule, wanted: Mapping[str, Any], now: datetime) -> Schedule:
    """The schedule with these changes. New times count from now on. Raises BadInput, and the
    problem of what does not go with a change that somebody else has made meanwhile."""
    after = replace(before, **wanted)
    faults: list[Fault] = []
    check_rule(after, faults)
    if faults:
        raise refuse(faults)
    if not any(getattr(after, name) != getattr(before, name) for name in _TIMING):
        return after
    after = starting(after, now)
    return replace(after, next_tick=None) if after.paused_at is not None else after


def refused(error: BadInput) -> Exception:
    """The problem of what a rule says of itself, with the field as the body names it."""
    return refuse([of_input(error)]) if type(error) is BadInput else error


def next_ticks(schedule: Schedule, now: datetime, count: int) -> list[datetime]:
    """The ticks to come, as if it were not paused. Raises BadInput if there will be none."""
    ticks = schedule.timing.ticks(first_tick(schedule.timing, now))
    return [tick for tick, _ in zip(ticks, range(count), strict=False)]
