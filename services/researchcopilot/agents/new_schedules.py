"""A schedule as somebody asks for it, checked and made into one: the api and the operator share it.

Pure, but for asking what workers have registered: the same checks hold for a new schedule and for
one that is changed.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from researchcopilot.agents.inputs import check_input
from researchcopilot.agents.new_runs import Door, check_size
from researchcopilot.core import cron
from researchcopilot.core.errors import BadInput
from researchcopilot.core.faults import Fault, of_input
from researchcopilot.core.fields import Body, Field
from researchcopilot.core.ids import new_id
from researchcopilot.core.schedules import MISFIRES, OVERLAPS, SYSTEM, Schedule
from researchcopilot.core.schemas import Choice, Json, Moment, Number, Pairs, Text, Whole
from researchcopilot.storage.schedules import name_taken

LEAP_YEAR_S = 366 * 86_400
TEN_YEARS = timedelta(days=3653)

TIMES = (
    Field("cron", Text(1, cron.MAX_LINE), "five fields or @daily, in `timezone`; or interval_s"),
    Field("timezone", Text(1, 64), "the IANA zone of cron", default="UTC"),
    Field("interval_s", Number(1, LEAP_YEAR_S), "instead of cron: so many real seconds"),
    Field("starts_at", Moment(), "no tick before it; an interval's first tick"),
    Field("ends_at", Moment(), "no tick after it"),
)
FIELDS = (
    Field("name", Text(1, 200), "unique in the workspace", True),
    Field("input", Json(32), "what the agent is asked at each tick", True),
    Field("agent", Text(1, 200), "one of GET /v1/agents", default="research"),
    *TIMES,
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
    Field("deadline_s", Number(1, LEAP_YEAR_S), "a run fails so long after it is due; a day"),
)
NEW_SCHEDULE = Body("NewSchedule", FIELDS)


async def new_schedule(
    door: Door,
    workspace_id: int,
    fields: Mapping[str, Any],
    faults: list[Fault],
    schedule_id: str | None = None,
) -> Schedule:
    """The schedule that these checked fields ask for, under this id if one is given; of no use if
    there are faults."""
    fields = {**fields, "overlap": fields["overlap"] or overlap_of(fields["misfire"])}
    check_name(fields["name"], faults)
    made = Schedule(
        schedule_id=schedule_id or new_id(),
        workspace_id=workspace_id,
        session_id=new_id(),
        **{**fields, "metadata": fields["metadata"] or {}},
    )
    await check_work(door, made, faults)
    check_rule(made, faults)
    return made


def check_name(name: str, faults: list[Fault]) -> None:
    """Also where the product's own schedules are not made yet."""
    if any(name == system.name for system in SYSTEM):
        faults.append(of_input(name_taken(name)))


def overlap_of(misfire: str) -> str:
    """What is meant where nothing is said."""
    return "allow" if misfire == "all" else "skip"


async def check_work(door: Door, schedule: Schedule, faults: list[Fault]) -> None:
    """Whether somebody would take its runs."""
    fits = check_size(door, schedule.input, "$.input", faults)
    agent = await door.catalogue.agent(schedule.agent, "$.agent", faults)
    if agent is not None and fits:
        await check_input(schedule.input, agent, "$.input", faults)
    if schedule.queue is not None:
        await door.catalogue.queue(schedule.queue, "$.queue", faults)


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
        faults.append(of_input(error))
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
