"""How schedules and their ticks look from outside."""

from typing import NamedTuple

from researchcopilot.api.render import moment
from researchcopilot.api.views import Shown, View, maybe, ref, text, time, uuid, whole
from researchcopilot.core.schedules import MISFIRES, OVERLAPS, Schedule, Tick
from researchcopilot.core.schemas import Schema
from researchcopilot.core.states import Status


class Seen(NamedTuple):
    """A schedule and the newest tick of it that has a run."""

    schedule: Schedule
    last: Tick | None


def _number(doc: str) -> Schema:
    return {"type": ["number", "null"], "description": doc}


def _duration(tick: Tick) -> float | None:
    if tick.started_at is None or tick.finished_at is None:
        return None
    return (tick.finished_at - tick.started_at).total_seconds()


_STATUSES = [status.value for status in Status]
TICK: View[Tick] = View(
    "Tick",
    "A tick of a schedule and what became of it",
    (
        Shown("tick", time("by the rule; of a trigger: when it was"), lambda t: moment(t.tick)),
        Shown("cause", text(enum=["clock", "trigger"]), lambda t: t.cause),
        Shown(
            "outcome",
            text(
                "merged: a run that waited already does its work; overlap: skipped, since the run "
                "before had not ended; missed: skipped by the misfire rule",
                enum=["fired", "merged", "overlap", "missed"],
            ),
            lambda t: t.outcome,
        ),
        Shown(
            "until",
            maybe(time("missed: it stands for every tick before that")),
            lambda t: moment(t.until),
        ),
        Shown("fired_at", time("when it was dealt with"), lambda t: moment(t.fired_at)),
        Shown("run_id", maybe(uuid("null: it was skipped")), lambda t: t.run_id),
        Shown(
            "status",
            {**maybe(text("of the run; null: none, or it was removed")),
             "enum": [*_STATUSES, None]},
            lambda t: t.status,
        ),
        Shown("duration_s", _number("from the run's start to its end"), _duration),
        Shown("error", maybe(text("why the run has failed")), lambda t: t.error),
    ),
)  # fmt: skip
_LAST: Schema = {
    "oneOf": [ref("Tick"), {"type": "null"}],
    "description": "the newest tick that has a run",
}
_COMMON: tuple[Shown[Seen], ...] = (
    Shown("schedule_id", uuid(), lambda s: s.schedule.schedule_id),
    Shown("name", text(), lambda s: s.schedule.name),
    Shown(
        "system",
        {"type": "boolean", "description": "the product's own: pausable, not deletable"},
        lambda s: s.schedule.system,
    ),
    Shown("session_id", maybe(uuid("of its runs")), lambda s: s.schedule.session_id),
    Shown("agent", text(), lambda s: s.schedule.agent),
    Shown("queue", maybe(text("null: the agent's own")), lambda s: s.schedule.queue),
    Shown("cron", maybe(text()), lambda s: s.schedule.cron),
    Shown("timezone", text("of cron"), lambda s: s.schedule.timezone),
    Shown("interval_s", _number("real seconds"), lambda s: s.schedule.interval_s),
    Shown("starts_at", maybe(time()), lambda s: moment(s.schedule.starts_at)),
    Shown("ends_at", maybe(time()), lambda s: moment(s.schedule.ends_at)),
    Shown("misfire", text(enum=list(MISFIRES)), lambda s: s.schedule.misfire),
    Shown("overlap", text(enum=list(OVERLAPS)), lambda s: s.schedule.overlap),
    Shown("jitter_s", {"type": "number"}, lambda s: s.schedule.jitter_s),
    Shown(
        "metadata",
        {"type": "object", "additionalProperties": text()},
        lambda s: s.schedule.metadata,
    ),
    Shown("max_attempts", maybe(whole("null: the agent's")), lambda s: s.schedule.max_attempts),
    Shown("timeout_s", _number("null: the worker's default"), lambda s: s.schedule.timeout_s),
    Shown("deadline_s", _number("null: a day"), lambda s: s.schedule.deadline_s),
    Shown("paused_at", maybe(time()), lambda s: moment(s.schedule.paused_at)),
    Shown(
        "paused_why",
        maybe(text("set when the product itself paused it")),
        lambda s: s.schedule.paused_why,
    ),
    Shown(
        "next_tick",
        maybe(time("null: paused, or over")),
        lambda s: moment(s.schedule.next_tick),
    ),
    Shown("last_tick", _LAST, lambda s: TICK(s.last) if s.last else None),
    Shown("created_at", time(), lambda s: moment(s.schedule.created_at)),
    Shown("updated_at", time(), lambda s: moment(s.schedule.updated_at)),
)
SCHEDULE: View[Seen] = View("Schedule", "A schedule, without its input", _COMMON)
FULL_SCHEDULE: View[Seen] = View(
    "FullSchedule",
    "A schedule with its input",
    (*_COMMON, Shown("input", {"description": "of each run"}, lambda s: s.schedule.input)),
)
TICKS_TO_COME: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "data": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {"tick": time(), "local": time("the same moment, in the timezone")},
                "required": ["tick", "local"],
            },
        }
    },
    "required": ["data"],
}
