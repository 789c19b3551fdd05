"""Schedules: what the clock starts, and what becomes of the ticks that are due. Pure.

A schedule's `next_tick` is the oldest tick that nobody has dealt with. Dealing with it is a plan:
which ticks are to fire, which were missed, and which tick is next. A plan is made from the
schedule as it was read; it holds only while the row has the same revision and the same next_tick.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from researchcopilot.core.cron import Cron
from researchcopilot.core.errors import BadInput
from researchcopilot.core.states import Status
from researchcopilot.core.ticks import Every, Timing, due

MISFIRES = ("skip", "latest", "all")
OVERLAPS = ("skip", "allow")
# With misfire `skip`, a tick that is later than this is not fired any more.
GRACE = timedelta(seconds=60)
_UNSET = datetime(1970, 1, 1, tzinfo=UTC)  # until the database has given its time


@dataclass(frozen=True, slots=True)
class Schedule:
    """A row of `schedules`. Either `cron` (with `timezone`) or `interval_s`.

    `queue` and `max_attempts` None are the agent's own. `deadline_s` counts from a run's due time.
    `paused_why` is set when the product itself paused it. `next_tick` None: paused, or over.
    """

    schedule_id: str
    workspace_id: int
    name: str
    agent: str
    input: Any
    system: bool = False
    session_id: str | None = None
    queue: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    max_attempts: int | None = None
    timeout_s: float | None = None
    deadline_s: float | None = None
    unique_key: str | None = None
    cron: str | None = None
    timezone: str = "UTC"
    interval_s: float | None = None
    anchor: datetime = _UNSET
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    misfire: str = "latest"
    overlap: str = "skip"
    jitter_s: float = 0.0
    paused_at: datetime | None = None
    paused_why: str | None = None
    next_tick: datetime | None = None
    revision: int = 1
    created_at: datetime = _UNSET
    updated_at: datetime = _UNSET

    @property
    def timing(self) -> Timing:
        rule = (
            Cron(self.cron, self.timezone)
            if self.cron is not None
            else Every(self.interval_s or 0.0, self.anchor)
        )
        return Timing(rule, self.starts_at, self.ends_at)


@dataclass(frozen=True, slots=True)
class Tick:
    """A row of `ticks`, with its run as it stands (`status` None: it has none, or it was removed).

    `cause`: clock, trigger. `outcome`: fired, merged, overlap, missed. `until`: missed, and every
    tick before that moment with it.
    """

    schedule_id: str
    tick: datetime
    cause: str
    outcome: str
    until: datetime | None
    run_id: str | None
    fired_at: datetime
    status: Status | None
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None = None


def first_tick(timing: Timing, now: datetime) -> datetime:
    """The first one to come. Raises BadInput, with the field that is to blame, for a schedule
    that would never fire."""
    tick = timing.after(now)
    if tick is not None:
        return tick
    after = max(now, timing.starts_at or now)
    if timing.rule.after(after) is None:
        raise BadInput("never fires: there is no such day within 50 years", field="cron")
    if timing.ends_at is not None and timing.ends_at <= now:
        raise BadInput("is past: there is no tick before it any more", field="ends_at")
    raise BadInput("is before the first tick: it would never fire", field="ends_at")


@dataclass(frozen=True, slots=True)
class PlannedTick:
    """`fires` or was missed; `until`: this one stands for every tick before that moment."""

    tick: datetime
    fires: bool
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to become of a schedule's due ticks."""

    schedule: Schedule
    ticks: Sequence[PlannedTick]
    next_tick: datetime | None


def plan(schedule: Schedule, now: datetime) -> Plan:
    """Which due ticks fire, by the schedule's misfire rule. `next_tick` must be due."""
    assert schedule.next_tick is not None
    found = due(schedule.timing, schedule.next_tick, now)
    newest = found.ticks[-1]
    fires: set[datetime]
    if schedule.misfire == "all":
        fires = set(found.ticks)
    elif schedule.misfire == "skip" and now - newest > GRACE:
        fires = set()
    else:
        fires = {newest}
    ticks = [PlannedTick(tick, tick in fires) for tick in found.ticks]
    if found.older is not None:
        ticks.insert(0, PlannedTick(found.older, False, until=found.ticks[0]))
    return Plan(schedule, ticks, found.following)


@dataclass(frozen=True, slots=True)
class SystemSchedule:
    """A schedule that the product makes for each workspace: pausable, never deleted.

    Exactly one of `cron` and `interval_s`. `timezone` None: the workspace's own, also when that
    is changed. `unique_key`: at most one unclaimed run of it waits.
    """

    name: str
    agent: str
    cron: str | None = None
    interval_s: float | None = None
    timezone: str | None = "UTC"
    misfire: str = "latest"
    max_attempts: int = 5
    unique_key: str | None = None


# The jobs that the product brings along as schedules; the scheduler makes them in every workspace
# that lacks them. (Digests are written by the finish of their runs; the others are duties.)
SYSTEM = (
    SystemSchedule("rebuild_index", "rebuild_index", interval_s=300.0, unique_key="rebuild_index"),
    SystemSchedule("daily_report", "daily_report", cron="0 8 * * *", timezone=None),
)
