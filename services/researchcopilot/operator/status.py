"""The status of an object, out of the row that is its. Pure.

The same row gives the same status, whoever works it out and when: times are those of the rows, so
that two operators write the same thing, and the second sees that nothing is left to write. Text is
cleaned and cut: it comes from agents, and is read on terminals.
"""

import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from researchcopilot.core.states import TERMINAL, Status
from researchcopilot.storage.objects import Standing

ANSWER = 1024  # characters
MESSAGE = 1024
PENDING = "Pending"
PHASES = {
    Status.QUEUED: "Queued",
    Status.RUNNING: "Running",
    Status.SUCCEEDED: "Succeeded",
    Status.FAILED: "Failed",
    Status.CANCELLED: "Cancelled",
}
ENDED = frozenset(PHASES[status] for status in TERMINAL)
_JOINERS = "\u200c\u200d"  # invisible, but they are spelling
Json = dict[str, Any]


def shown(text: str | None, limit: int) -> str | None:
    """One line of what can be seen, at most so long; None if there is nothing."""
    if not text:
        return None
    seen = "".join(
        " " if char.isspace() else char
        for char in text[: 4 * limit]
        if char.isspace() or char in _JOINERS or not unicodedata.category(char).startswith("C")
    )
    line = " ".join(seen.split())
    return (line[: limit - 1] + "…" if len(line) > limit else line) or None


def moment(time: datetime | None) -> str | None:
    """RFC 3339 in whole seconds, as Kubernetes writes its times."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if time else None


def reason_of(code: str) -> str:
    """An error's code as the reason of a condition: `unknown_agent` → UnknownAgent."""
    return "".join(part.title() for part in code.split("_"))


def condition(
    kind: str, value: str, reason: str, message: str | None, generation: int, since: str
) -> Json:
    """`value`: True, False, Unknown. `reason` is one word, `message` a sentence."""
    return {
        "type": kind,
        "status": value,
        "reason": reason,
        "message": message or "",
        "observedGeneration": generation,
        "lastTransitionTime": since,
    }


def ends(phase: str, reason: str, message: str | None, generation: int, since: str) -> list[Json]:
    """The conditions of a run in this phase. `Ready` and `Stalled` are what Helm and other tools
    that wait look at: ready when it has succeeded, stalled when it never will."""

    def one(kind: str, value: str) -> Json:
        return condition(kind, value, reason, message, generation, since)

    if phase == "Succeeded":
        return [one("Succeeded", "True"), one("Ready", "True")]
    if phase in ENDED:
        return [one("Succeeded", "False"), one("Ready", "False"), one("Stalled", "True")]
    return [one("Succeeded", "Unknown"), one("Ready", "False")]


def of_run(run: Standing, generation: int, before: Mapping[str, Any]) -> Json:
    """What the row of a run is as a status; `before` is what the object shows now."""
    if run.status is None:
        return removed(run, generation, before)
    phase = PHASES[run.status]
    reason, message = _reason(run)
    since = moment(_since(run)) or ""
    return without_nothing(
        {
            "observedGeneration": generation,
            "phase": phase,
            "runId": run.run_id,
            "sessionId": run.session_id,
            "attempt": run.attempts or None,
            "worker": shown(run.worker, 253),
            "answer": shown(run.answer, ANSWER),
            "message": message,
            "submittedAt": moment(run.created_at),
            "startedAt": moment(run.started_at),
            "finishedAt": moment(run.finished_at),
            "conditions": ends(phase, reason, message, generation, since),
        }
    )


def _reason(run: Standing) -> tuple[str, str | None]:
    assert run.status is not None
    if run.status is Status.FAILED:
        return "Failed", shown(f"{run.error_type}: {run.error_message}", MESSAGE)
    if run.status in TERMINAL:
        return PHASES[run.status], None
    if run.cancelling:
        return "Cancelling", "It was asked to stop; its worker is being told."
    if run.parked:
        return "Waiting", "It waits for its turn in its session."
    if run.status is Status.QUEUED and run.error_type:
        return "Retrying", shown(f"{run.error_type}: {run.error_message}", MESSAGE)
    return PHASES[run.status], None


def _since(run: Standing) -> datetime | None:
    return run.finished_at if run.status in TERMINAL else run.created_at


def removed(run: Standing, generation: int, before: Mapping[str, Any]) -> Json:
    """Its run was removed by retention: what the object shows of its end stays."""
    if before.get("runId") == run.run_id and before.get("phase") in ENDED:
        return {**before, "observedGeneration": generation}
    message = "Its run was removed by retention before its end was seen."
    since = before.get("submittedAt") or moment(datetime.fromtimestamp(0, UTC)) or ""
    return {
        "observedGeneration": generation,
        "phase": "Failed",
        "runId": run.run_id,
        "message": message,
        "conditions": ends("Failed", "Removed", message, generation, since),
    }


def refused(reason: str, message: str, generation: int, now: datetime) -> Json:
    """It will never be a run: the request was refused, and why."""
    text, since = shown(message, MESSAGE), moment(now) or ""
    return {
        "observedGeneration": generation,
        "phase": "Failed",
        "message": text,
        "finishedAt": since,
        "conditions": ends("Failed", reason, text, generation, since),
    }


def waits(reason: str, message: str, generation: int, before: Mapping[str, Any], now: str) -> Json:
    """It is no run yet, and may become one."""
    since = transition(before, "Succeeded", "Unknown", now)
    return {
        "observedGeneration": generation,
        "phase": PENDING,
        "message": message,
        "conditions": ends(PENDING, reason, message, generation, since),
    }


def transition(before: Mapping[str, Any], kind: str, value: str, now: str) -> str:
    """Since when a condition has this value."""
    for one in before.get("conditions") or ():
        if one.get("type") == kind and one.get("status") == value:
            return str(one.get("lastTransitionTime") or now)
    return now


def merge(before: Mapping[str, Any], wanted: Mapping[str, Any]) -> Json:
    """The merge patch that makes the one the other; empty if they are the same."""
    patch: Json = {name: None for name in before if name not in wanted}
    patch |= {name: value for name, value in wanted.items() if before.get(name) != value}
    return patch


def without_nothing(fields: Json) -> Json:
    return {name: value for name, value in fields.items() if value is not None}
