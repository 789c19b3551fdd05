"""What a body says of a schedule, checked and made into one. Pure, but for asking what workers have
registered: the same checks hold for a new schedule and for one that is changed.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from researchcopilot.api.bodies import Body, Field
from researchcopilot.api.inputs import check_input
from researchcopilot.api.operations import Call
from researchcopilot.api.problems import Fault, refuse
from researchcopilot.api.schemas import Choice, Json, Moment, Number, Pairs, Text, Whole
from researchcopilot.api.submit import check_size
from researchcopilot.core import cron
from researchcopilot.core.errors import BadInput, Conflict
from researchcopilot.core.ids import new_id
from researchcopilot.core.schedules import MISFIRES, OVERLAPS, SYSTEM, Schedule, first_tick
from researchcopilot.storage.schedules import name_taken, starting

YEAR_S = 366 * 86_400
TEN_YEARS = timedelta(days=3653)

_TIMES = (
    Field("cron", Text(1, cron.MAX_LINE), "five fields or @daily, in `timezone`; or interval_s"),
    Field("timezone", Text(1, 64), "the IANA zone of cron", default="UTC"),
    Field("interval_s", Number(1, YEAR_S), "instead of cron: so many real seconds"),
    Field("starts_at", Moment(), "no tick before it; an interval's first tick"),
    Field("ends_at", Moment(), "no tick after it"),
)
_FIELDS = (
    Field("name", Text(1, 200), "unique in the workspace", True),
    Field("input", Json(32), "what the agent is asked at each tick", True),
    Field("agent", Text(1, 200), "one of GET /v1/agents", default="research"),
    *_TIMES,
    Field(
        "misfire",
        Choice(MISFIRES),
        "of ticks that nobody could fire in time: skip them, fire the latest, or the last 100",
        default="latest",
    ),
    Field(
        "overlap",
        Choice(OVERLAPS),
        "while a run of it has not ended: skip the tick, or allow another; skip unless misfire is "
        "all",
    ),
    Field("jitter_s", Number(0, 86_400), "each run waits a random part of it", default=0.0),
    Field("queue", Text(1, 200), "where its runs wait; the agent's queue unless given"),
    Field("metadata", Pairs(13, 64, 512), "kept with its runs and given to the agent"),
    Field("max_attempts", Whole(1, 100), "a failing run is tried so often; the agent's own"),
    Field("timeout_s", Number(0.1, 604_800), "one attempt may take so many seconds"),
    Field("deadline_s", Number(1, YEAR_S), "a run fails so long after it is due; a day"),
)
NEW_SCHEDULE = Body("NewSchedule", _FIELDS)
SCHEDULE_CHANGES = Body(
    "ScheduleChanges",
    tuple(Field(f.name, f.kind, f"{f.doc}; null: as if not given") for f in _FIELDS),
)
COUNT = Field("count", Whole(1, 100), "so many ticks", default=5)
PREVIEW = Body("SchedulePreview", (*_TIMES, COUNT))

_DEFAULTS = {field.name: field.default for field in _FIELDS}
_NEEDED = ("name", "input", "agent")
_TIMING = frozenset(field.name for field in _TIMES)
# Of the product's own schedules a person may change when they fire, not what.
_OF_THE_PRODUCT = _TIMING | {"jitter_s", "misfire"}


async def new_schedule(call: Call, fields: Mapping[str, Any]) -> Schedule:
    """The schedule that a body asks for. Raises the problem of everything that is wrong."""
    faults: list[Fault] = []
    fields = {**fields, "overlap": fields["overlap"] or _overlap(fields["misfire"])}
    _check_name(fields["name"], faults)
    made = Schedule(
        schedule_id=new_id(),
        workspace_id=call.workspace_id,
        session_id=new_id(),
        **{**fields, "metadata": fields["metadata"] or {}},
    )
    await _check_work(call, made, faults)
    check_rule(made, faults)
    if faults:
        raise refuse(faults)
    return made


def _check_name(name: str, faults: list[Fault]) -> None:
    """Also where the product's own schedules are not made yet."""
    if any(name == system.name for system in SYSTEM):
        faults.append(_fault(name_taken(name)))


def _overlap(misfire: str) -> str:
    return "allow" if misfire == "all" else "skip"


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
        found["overlap"] = _overlap(misfire)
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
        _check_name(after.name, faults)
    if wanted.keys() & {"agent", "input", "queue"}:
        await _check_work(call, after, faults)
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


async def _check_work(call: Call, schedule: Schedule, faults: list[Fault]) -> None:
    check_size(call, schedule.input, "$.input", faults)
    agent = await call.services.catalogue.agent(schedule.agent, "$.agent", faults)
    if agent is not None:
        await check_input(schedule.input, agent, "$.input", faults)
    if schedule.queue is not None:
        await call.services.catalogue.queue(schedule.queue, "$.queue", faults)


def check_rule(schedule: Schedule, faults: list[Fault]) -> None:
    """Whether it is one rule, and one that can be read."""
    if (schedule.cron is None) == (schedule.interval_s is None):
        words = "or interval_s: one of them is needed" if schedule.cron is None else (
            "and interval_s exclude each other: send one of them"
        )  # fmt: skip
        faults.append(Fault("$.cron", words, "required" if schedule.cron is None else "invalid"))
    try:
        if schedule.cron is None:
            cron.check_zone(schedule.timezone)
        else:
            cron.parse(schedule.cron, schedule.timezone)
    except BadInput as error:
        faults.append(_fault(error))
    if schedule.interval_s is not None and schedule.jitter_s > schedule.interval_s:
        faults.append(Fault("$.jitter_s", "must not be longer than interval_s"))
    start, end = schedule.starts_at, schedule.ends_at
    if start is not None and end is not None and end <= start:
        faults.append(Fault("$.ends_at", "must be later than starts_at"))
    if start is not None and start > datetime.now(UTC) + TEN_YEARS:
        faults.append(Fault("$.starts_at", "must be at most ten years ahead"))
    if schedule.misfire == "all" and schedule.overlap == "skip":
        words = "must be allow when misfire is all: its ticks would skip each other"
        faults.append(Fault("$.overlap", words))


def _fault(error: BadInput) -> Fault:
    return Fault(f"$.{error.field}", error.message, error.code)


def refused(error: BadInput) -> Exception:
    """The problem of what a rule says of itself, with the field as the body names it."""
    return refuse([_fault(error)]) if type(error) is BadInput else error


def next_ticks(schedule: Schedule, now: datetime, count: int) -> list[datetime]:
    """The ticks to come, as if it were not paused. Raises BadInput if there will be none."""
    ticks = schedule.timing.ticks(first_tick(schedule.timing, now))
    return [tick for tick, _ in zip(ticks, range(count), strict=False)]
