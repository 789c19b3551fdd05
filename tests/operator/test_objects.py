"""What events and lists tell, put into order; specs in the words of the api; statuses out of
rows."""

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from researchcopilot.core.faults import Fault
from researchcopilot.core.ids import new_id
from researchcopilot.core.states import Status
from researchcopilot.operator import status
from researchcopilot.operator.objects import Objects
from researchcopilot.operator.spec import RUN_FIELDS, SCHEDULE_FIELDS, asked, run_fields, told
from researchcopilot.storage.objects import Standing

UID = new_id()
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


def body(version: int, generation: int = 1, uid: str = UID, **more: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "uid": uid, "namespace": "research", "name": "a", "generation": generation,
            "resourceVersion": str(version),
        },
        "spec": {"input": generation},
        **more,
    }  # fmt: skip


def test_what_is_older_than_what_is_known_is_dropped() -> None:
    """A list that was asked for before an event, an event that comes late."""
    known = Objects()
    assert known.take(body(7, 2)) is not None
    known.dirty.clear()
    assert known.take(body(6, 1)) is None
    seen = known.get(UID)
    assert seen is not None and seen.generation == 2 and not known.dirty


def test_what_was_deleted_never_comes_back() -> None:
    """However late somebody tells of it; another object of its name is another."""
    known = Objects()
    known.take(body(1))
    known.drop(UID)
    assert known.take(body(9)) is None and len(known) == 0
    assert known.gone == {UID}
    other = new_id()
    assert known.take(body(10, uid=other)) is not None


def test_a_newer_one_of_its_name_says_that_it_was_deleted() -> None:
    """Nobody told, since the watch had to begin anew; what is told late of the old one says nothing
    of the new."""
    known, newer = Objects(), new_id()
    known.take(body(1))
    known.take(body(5, uid=newer))
    assert [seen.uid for seen in known] == [newer] and known.gone == {UID}
    assert known.take(body(2)) is None
    late = new_id()
    known.take(body(3, uid=late))
    assert known.get(newer) is not None
    known.drop(newer)
    last = new_id()
    known.take(body(9, uid=last))
    assert known.gone == {UID, newer}, "the one before it was gone already"


def test_what_a_person_has_just_changed_does_not_wait_for_a_status_that_was_shown() -> None:
    """A RunSchedule shows its ticks every ten seconds; `suspend: true` counts at once."""
    known = Objects()
    known.take(body(1, 1))
    seen = known.get(UID)
    assert seen is not None
    later = seen.not_before = time.monotonic() + 10
    known.take(body(2, 1, status={"phase": "Queued"}))
    assert seen.not_before == later
    known.take(body(3, 2))
    assert seen.not_before < time.monotonic() + 1.1


def test_what_is_told_twice_is_no_news() -> None:
    known = Objects()
    known.take(body(1))
    known.dirty.clear()
    known.take(body(2))  # a label was changed
    assert known.dirty == set()
    known.take(body(3, status={"phase": "Queued"}))
    assert known.dirty == {UID}


def test_an_object_that_is_being_deleted_is_gone() -> None:
    """Somebody else's finalizer holds it: what it asked for is not wanted any more."""
    known, told_so = Objects(), body(2)
    told_so["metadata"]["deletionTimestamp"] = "2026-12-01T12:00:00Z"
    known.take(told_so)
    assert known.gone == {UID} and len(known) == 1


@pytest.mark.parametrize("bad", [{}, {"metadata": {}}, {"metadata": {"uid": "x", "name": "a"}}])
def test_what_is_no_object_is_passed_over(bad: dict[str, Any]) -> None:
    assert Objects().take(bad) is None


def test_only_what_is_asked_counts_as_asked() -> None:
    spec = {"input": 1, "agent": "echo"}
    assert asked(spec) == asked({"agent": "echo", "input": 1, "ttlSecondsAfterFinished": 5})
    assert asked(spec) != asked({**spec, "input": 2})
    assert asked({"input": "\ud800"}), "nothing that a spec can hold breaks it"


def test_faults_are_told_with_the_names_of_the_object() -> None:
    faults: list[Fault] = []
    spec = {"input": {"a": [None, "\x00"]}, "timeoutSeconds": 0, "sessionId": 7, "colour": "red"}
    assert run_fields(spec, faults) is None
    words = told(faults, RUN_FIELDS)
    assert "spec.input.a[1] contains NUL" in words
    assert "spec.colour is not a field" in words
    assert words.endswith("; and 1 more."), "a status has no list of the others"
    rest = told(faults[2:], RUN_FIELDS)
    assert "spec.timeoutSeconds must be from 0.1" in rest
    assert "spec.sessionId must be a UUID" in told(faults, RUN_FIELDS) + rest
    taken = [Fault("$.name", "is taken"), Fault("$", "is wrong"), Fault("$.ends_at", "is past")]
    assert told(taken, SCHEDULE_FIELDS) == (
        "metadata.name is taken; spec is wrong; spec.endsAt is past."
    )


def standing(**fields: Any) -> Standing:
    values: dict[str, Any] = {
        "uid": UID, "generation": 1, "acted_on": 1, "asked": "a", "run_id": new_id(),
        "status": Status.QUEUED, "session_id": UID, "attempts": 0, "created_at": NOON,
        "started_at": None, "finished_at": None, "parked": False, "cancelling": False,
        "worker": None, "error_type": None, "error_message": None, "answer": None,
        **fields,
    }  # fmt: skip
    return Standing(**values)


@pytest.mark.parametrize(
    ("fields", "phase", "reason", "succeeded"),
    [
        ({}, "Queued", "Queued", "Unknown"),
        ({"parked": True}, "Queued", "Waiting", "Unknown"),
        ({"error_type": "E", "error_message": "m", "attempts": 1}, "Queued", "Retrying", "Unknown"),
        ({"status": Status.RUNNING, "attempts": 1}, "Running", "Running", "Unknown"),
        ({"status": Status.RUNNING, "cancelling": True}, "Running", "Cancelling", "Unknown"),
        ({"status": Status.SUCCEEDED, "finished_at": NOON}, "Succeeded", "Succeeded", "True"),
        ({"status": Status.CANCELLED, "finished_at": NOON}, "Cancelled", "Cancelled", "False"),
        (
            {"status": Status.FAILED, "finished_at": NOON, "error_type": "E", "error_message": "m"},
            "Failed", "Failed", "False",
        ),
    ],
)  # fmt: skip
def test_a_row_is_one_status_whoever_works_it_out(
    fields: dict[str, Any], phase: str, reason: str, succeeded: str
) -> None:
    row = standing(**fields)
    shown = status.of_run(row, 3, {})
    assert shown == status.of_run(row, 3, {"phase": "Queued", "answer": "of another run"})
    found = {one["type"]: one for one in shown["conditions"]}
    assert shown["phase"] == phase and shown["observedGeneration"] == 3
    assert (found["Succeeded"]["status"], found["Succeeded"]["reason"]) == (succeeded, reason)
    assert found["Ready"]["status"] == ("True" if succeeded == "True" else "False")
    assert ("Stalled" in found) == (succeeded == "False")
    assert all(one["lastTransitionTime"] == "2026-12-01T12:00:00Z" for one in found.values())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (None, None),
        ("\n \t", None),
        ("two\r\nlines", "two lines"),
        ("\x1b]0;title\x07red\x1b[31m", "]0;titlered[31m"),
        ("left\u202eright\u2066", "leftright"),
        ("由 Postgres 决定。", "由 Postgres 决定。"),
        ("\U0001f468\u200d\U0001f469", "\U0001f468\u200d\U0001f469"),
        ("\ud800x", "x"),
        ("x" * 30, "x" * 9 + "…"),
    ],
)
def test_text_of_agents_is_one_line_of_what_can_be_seen(
    text: str | None, shown: str | None
) -> None:
    assert status.shown(text, 10 if text and "x" * 30 in text else 100) == shown


def test_a_patch_removes_what_is_not_so_any_more() -> None:
    """The answer of a generation must not stand beside the phase of the next."""
    before = {"phase": "Succeeded", "answer": "42", "runId": "a"}
    assert status.merge(before, {"phase": "Queued", "runId": "a"}) == {
        "answer": None,
        "phase": "Queued",
    }
    assert status.merge(before, dict(before)) == {}
