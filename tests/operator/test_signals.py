"""What is made of what Pods say; pure, no server."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.operator.cluster import NAMESPACE
from tests.operator.signal_cases import (
    AGAIN,
    BACK,
    CASES,
    DELETED_AT,
    END,
    ERROR,
    OOM,
    UNREACHED,
    Case,
    condition,
    conditions,
    disrupted,
)
from tests.operator.stage import a_pod, container, merged

from researchcopilot.core.text import forbidden_in
from researchcopilot.operator.pods import Seen
from researchcopilot.operator.signals import REASONS, Asked, Signal, read, suspect


def told_to_end(at: str) -> dict[str, object]:
    return {"metadata": {"deletionTimestamp": f"2026-11-30T{at}Z"}}


NOW = datetime(2026, 11, 30, 12, 0, 30, tzinfo=UTC)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_state_says_what_it_means_once(case: Case) -> None:
    """Duplicate, reordered, missing events too: see the cases."""
    assert case.origin in ("synthetic", "recorded")
    pod, seen = a_pod("a"), Seen()
    found = [read(kind, merged(pod, more), "worker") for kind, more in case.events]
    assert [one.reason for one in found if one and seen.is_news(one)] == list(case.said)
    assert {one.reason for one in found if one} <= set(REASONS)


def said(kind: str, **fields: object) -> Signal:
    found = read(kind, merged(a_pod("a"), container(**fields)), "worker")
    assert found is not None
    return found


def test_what_a_pod_says_can_be_stored() -> None:
    """One that cannot would keep the signals of its group from being acted upon."""
    for reason in ("No\x00", "No\ud800"):
        ended = {"status": {"phase": "Failed", "reason": reason, "message": reason}}
        for more in (ended, conditions(disrupted(reason))):
            found = read("DELETED", merged(a_pod("a"), more), "worker")
            again = read("MODIFIED", merged(merged(a_pod("a"), ended), more), "worker")
            assert found is not None and again is not None
            assert forbidden_in(found.cause) is None and forbidden_in(again.cause) is None


def test_the_end_of_a_container_is_the_end_of_what_started_before_it() -> None:
    """Told late, its successor may be at work already: that one is not meant."""
    assert said("MODIFIED", state=OOM).before == datetime.fromisoformat(END)
    waiting = said("MODIFIED", state={"waiting": {}}, lastState=ERROR, restartCount=1)
    assert waiting.before == datetime.fromisoformat(END)
    again = said("MODIFIED", state=AGAIN, lastState=OOM, restartCount=1)
    assert again.before == datetime.fromisoformat(BACK)
    assert said("DELETED", state=AGAIN, lastState=OOM, restartCount=1).before is None


def test_an_end_without_a_time_is_believed_only_of_a_silent_worker() -> None:
    assert not said("MODIFIED", state={"terminated": {"exitCode": 1}}).sure
    assert said("MODIFIED", state=ERROR).sure


def test_each_crash_of_a_loop_is_news() -> None:
    seen = Seen()
    for restarts in range(1, 4):
        found = said("MODIFIED", state={"waiting": {}}, lastState=ERROR, restartCount=restarts)
        found = replace(found, pod_uid="one")
        assert seen.is_news(found)
        assert not seen.is_news(found)


def test_what_was_seen_is_not_remembered_for_ever() -> None:
    seen = Seen(most=10)
    for number in range(100):
        pod = merged(a_pod(f"p{number}"), {})
        signal = read("DELETED", pod, "worker")
        assert signal is not None and seen.is_news(signal)
    assert len(seen._said) == 10


def test_a_person_is_told_why() -> None:
    assert said("MODIFIED", state=OOM).cause == (
        "its container ended, OOMKilled with exit code 137"
    )
    pod = merged(a_pod("a"), {"status": {
        "phase": "Failed", "reason": "Evicted", "message": "low on memory\x00" + "x" * 5000,
    }})  # fmt: skip
    found = read("MODIFIED", pod, "worker")
    assert found is not None and found.cause.startswith("its Pod ended: Evicted, low on memory�")
    assert len(found.cause) < 500


def test_the_owner_is_the_controller_or_the_pod_itself() -> None:
    pod = a_pod("a")
    owned = read("DELETED", pod, "worker")
    alone = read("DELETED", merged(pod, {"metadata": {"ownerReferences": None}}), "worker")
    assert owned is not None and owned.owner.kind == "ReplicaSet"
    assert alone is not None and (alone.owner.kind, alone.owner.name) == ("Pod", "a")


UNREADY = conditions(condition("Ready", "False"), condition("ContainersReady", "False"))
RESTARTED = container(state=AGAIN, lastState=OOM, restartCount=1)
SILENT: list[tuple[str, dict[str, object], list[str]]] = [
    ("healthy: perhaps Postgres is away from it alone", {}, []),
    ("its node does not answer", UNREACHED, ["node_lost"]),
    ("its own readiness fails", UNREADY, []),
    ("tainted", disrupted("DeletionByTaintManager"), ["node_lost"]),
    ("lost, as older clusters say it", {"status": {"reason": "NodeLost"}}, ["node_lost"]),
    ("about to be evicted", disrupted("EvictionByEvictionAPI"), []),
    ("still has time to end", DELETED_AT, []),
    ("has had its time", told_to_end("12:00:20"), ["drain_overrun"]),
    ("its last moment", told_to_end("12:00:27"), []),
    (
        "restarted, then its node was lost",
        merged(UNREACHED, RESTARTED),
        ["oom_killed", "node_lost"],
    ),
]


@pytest.mark.parametrize(("name", "more", "reasons"), SILENT, ids=[name for name, *_ in SILENT])
def test_what_is_thought_of_a_silent_worker(
    name: str, more: dict[str, object], reasons: list[str]
) -> None:
    pod = merged(a_pod("a"), more)
    asked = Asked(pod["metadata"]["uid"], "a", NAMESPACE)
    found = suspect(pod, asked, "worker", NOW)
    assert [signal.reason for signal in found] == reasons
    assert set(reasons) <= set(REASONS)


@pytest.mark.parametrize("other", [None, a_pod("a")], ids=["no Pod", "another Pod of its name"])
def test_a_pod_that_is_not_there_any_more(other: dict[str, object] | None) -> None:
    """StatefulSets, and people, give a name again: the uid is what counts."""
    found = suspect(other, Asked("its-uid", "a", NAMESPACE), "worker", NOW)
    assert [(one.reason, one.sure, one.pod_uid) for one in found] == [
        ("pod_deleted", False, "its-uid")
    ]


def test_a_clock_that_is_ahead_gives_no_less_time_to_end() -> None:
    """The time to end is by the API server's clock, and so is what it is compared with."""
    pod = merged(a_pod("a"), DELETED_AT)
    until = datetime.fromisoformat(DELETED_AT["metadata"]["deletionTimestamp"])
    asked = Asked(pod["metadata"]["uid"], "a", NAMESPACE)
    assert suspect(pod, asked, "worker", until + timedelta(seconds=4)) == []
    assert suspect(pod, asked, "worker", until + timedelta(seconds=6)) != []
