"""What an object asks for, in the words of the api. Pure.

A spec is written in camelCase, as in every object of Kubernetes; the api takes the same things in
its own names. Here the one becomes the other, and what is refused comes back under the name that
stands in the object. Nothing is checked here: that is done where the api has it done.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from researchcopilot.agents.new_runs import NEW_RUN
from researchcopilot.agents.new_schedules import NEW_SCHEDULE
from researchcopilot.core.faults import Fault, summary
from researchcopilot.core.fields import Body

# A field of the spec → the field of the api. What is in neither is refused by the schema already.
RUN_FIELDS = {
    "input": "input",
    "agent": "agent",
    "metadata": "metadata",
    "queue": "queue",
    "sessionId": "session_id",
    "onConflict": "on_conflict",
    "maxAttempts": "max_attempts",
    "timeoutSeconds": "timeout_s",
    "deadline": "deadline",
    "runAt": "run_at",
    "delaySeconds": "delay_s",
}
SCHEDULE_FIELDS = {
    "input": "input",
    "agent": "agent",
    "metadata": "metadata",
    "queue": "queue",
    "cron": "cron",
    "timeZone": "timezone",
    "intervalSeconds": "interval_s",
    "startsAt": "starts_at",
    "endsAt": "ends_at",
    "misfire": "misfire",
    "overlap": "overlap",
    "jitterSeconds": "jitter_s",
    "maxAttempts": "max_attempts",
    "timeoutSeconds": "timeout_s",
    "deadlineSeconds": "deadline_s",
}
# What says how the object is kept, not what is asked: a change of it asks for nothing new.
KEEPING = ("ttlSecondsAfterFinished", "suspend")

Spec = Mapping[str, Any]


def asked(spec: Spec) -> str:
    """What is asked, as a hash: the same again under another generation is nothing new."""
    wanted = {name: value for name, value in spec.items() if name not in KEEPING}
    text = json.dumps(wanted, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def run_fields(spec: Spec, faults: list[Fault]) -> dict[str, Any] | None:
    """The checked fields of a new run; None if there are faults."""
    return _checked(NEW_RUN, spec, RUN_FIELDS, {}, faults)


def schedule_fields(spec: Spec, name: str, faults: list[Fault]) -> dict[str, Any] | None:
    """The checked fields of a new schedule; None if there are faults."""
    return _checked(NEW_SCHEDULE, spec, SCHEDULE_FIELDS, {"name": name}, faults)


def _checked(
    body: Body,
    spec: Spec,
    names: Mapping[str, str],
    more: Mapping[str, Any],
    faults: list[Fault],
) -> dict[str, Any] | None:
    fields = {names.get(name, name): spec[name] for name in spec if name not in KEEPING}
    checked: dict[str, Any] | None = body.check({**fields, **more}, "$", faults)
    return checked


def told(faults: Sequence[Fault], names: Mapping[str, str]) -> str:
    """The sentence that the api would give, with the fields as the object names them."""
    ours = {field: name for name, field in names.items()}
    return summary([Fault(_place(f.field, ours), f.message, f.code) for f in faults])


def _place(path: str, ours: Mapping[str, str]) -> str:
    """`$.timeout_s` → `spec.timeoutSeconds`; `$.input.a[0]` → `spec.input.a[0]`."""
    rest = path.removeprefix("$").removeprefix(".")
    end = min((rest.index(mark) for mark in ".[ " if mark in rest), default=len(rest))
    field, more = rest[:end], rest[end:]
    if field == "name":
        return "metadata.name" + more
    return "spec" + (f".{ours.get(field, field)}" if field else "") + more
