"""The life that the demo shows is the ledger's: no claim is left out, and times are the run's."""

from datetime import UTC, datetime, timedelta

from researchcopilot.dev.lives import Asked, events
from researchcopilot.storage.overview import LedgerRow

BORN = datetime(2026, 1, 31, 8, 0, tzinfo=UTC)
ASKED = Asked("A", "run", "why?")


def claim(
    number: int, pid: int, start_ms: int, end_ms: int | None = None, outcome: str | None = None
) -> LedgerRow:
    end = None if end_ms is None else BORN + timedelta(milliseconds=end_ms)
    start = BORN + timedelta(milliseconds=start_ms)
    return LedgerRow("run", number, f"worker-{pid}", pid, start, end, outcome)


def run(**more: object) -> dict[str, object]:
    return {"created_at": "2026-01-31T08:00:00.000000Z", "status": "queued", **more}


def test_a_run_that_waits_has_only_been_queued() -> None:
    assert [event.state for event in events(ASKED, run(), [])] == ["queued"]


def test_a_success_has_its_worker_and_its_milliseconds() -> None:
    life = events(ASKED, run(), [claim(1, 7, 4, 44, "succeeded")])
    assert [(e.state, e.ms, e.pid) for e in life] == [
        ("queued", 0, None),
        ("running", 4, 7),
        ("succeeded", 44, 7),
    ]
    assert life[-1].took_ms == 40


def test_a_worker_that_died_refunds_the_attempt_and_another_one_goes_on() -> None:
    life = events(
        ASKED, run(), [claim(1, 7, 4, 3000, "lost"), claim(2, 8, 3010, 5010, "succeeded")]
    )
    assert [(e.state, e.pid, e.attempt) for e in life[1:]] == [
        ("running", 7, 1),
        ("queued", 7, 1),
        ("running", 8, 1),
        ("succeeded", 8, 1),
    ]
    assert "died" in life[2].note


def test_a_retry_is_another_attempt_and_a_failure_says_why() -> None:
    failed = run(error={"type": "ValueError", "message": "no"})
    life = events(ASKED, failed, [claim(1, 7, 1, 2, "retry"), claim(2, 7, 3, 4, "failed")])
    assert [e.attempt for e in life[1:]] == [1, 1, 2, 2]
    assert life[-1].state == "failed" and life[-1].note == "no"
