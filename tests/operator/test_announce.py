"""The Event that tells people: one for what belongs together, and never in anybody's way."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from kmock import KubernetesError
from tests.operator.cluster import EVENTS, NAMESPACE, PODS, Json, Served
from tests.operator.signal_cases import disrupted
from tests.operator.stage import (
    a_pod,
    in_cluster,
    merged,
    operating,
    queued_again,
    stamp,
    with_operator,
    worker_in,
)
from tests.support import eventually, metric

from researchcopilot.core.settings import Settings
from researchcopilot.operator import announce
from researchcopilot.operator.announce import Announcer
from researchcopilot.operator.kube import Kube
from researchcopilot.operator.signals import Signal, read
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce, "ROUND", 0.2)


@pytest.fixture
async def announcer(served: Served) -> AsyncIterator[Announcer]:
    kube = Kube(served.credentials)
    yield Announcer(kube)
    await kube.close()


def died(pod: Json, how: str = "DELETED") -> Signal:
    signal = read(how, pod, "worker")
    assert signal is not None
    return signal


def posted(served: Served) -> list[dict[str, Any]]:
    return [obj.raw for (resource, *_), obj in served.cluster.objects.items() if resource == EVENTS]


def failures() -> float:
    return metric("researchcopilot_operator_failures_total", what="events")


async def test_people_are_told_on_the_owner_what_happened(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    """Pods of one ReplicaSet, evicted in a drain."""
    async with operating(with_operator(settings), db, queue, served):
        pods = [merged(a_pod(f"w-{n}"), disrupted("EvictionByEvictionAPI")) for n in range(4)]
        for pod in pods:
            await served.cluster.apply(PODS, pod)
        workers = [await worker_in(db, queue, pod, 2) for pod in pods]
        for pod in pods:
            await served.cluster.remove(PODS, pod["metadata"]["name"])
        for worker in workers:
            await eventually(partial(queued_again, db, worker))
        # One Event, or as many as there were rounds in which they came.
        await eventually(lambda: sum(int(e["message"].split()[0]) for e in posted(served)) == 8)
    for event in posted(served):
        assert event["involvedObject"]["kind"] == "ReplicaSet"
        assert event["metadata"]["namespace"] == NAMESPACE
        assert (event["reason"], event["type"]) == ("RunsTakenBack", "Warning")
        words = r"runs of \d workers? taken back \(evicted\): \d+ queued"
        assert re.search(words, event["message"])
        assert "it was evicted, as in a drain" in event["message"]


async def test_a_pod_that_dies_twice_in_the_same_way_is_told_twice(
    served: Served, announcer: Announcer
) -> None:
    """Out of memory, restarted, out of memory again, with as many runs as before."""
    oom = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": stamp(NOW)}}
    pod = a_pod("p")
    for restarts in (0, 1):
        own = {"name": "worker", "restartCount": restarts, "state": oom}
        ended = merged(pod, {"status": {"containerStatuses": [own]}})
        announcer.tell(died(ended, "MODIFIED"), "queued")
        await announcer.post()
    assert len(posted(served)) == 2


async def test_what_belongs_together_is_one_event(served: Served, announcer: Announcer) -> None:
    """A burst of five hundred deaths is not five hundred Events."""
    for n in range(500):
        announcer.tell(died(a_pod(f"p-{n:03}")), "failed" if n == 0 else "queued")
    await announcer.post()
    await announcer.post()
    [event] = posted(served)
    assert event["message"] == (
        "500 runs of 500 workers taken back (pod_deleted): 1 failed, 499 queued. Of the first "
        "worker: its Pod was deleted. Pods: p-000, p-001, p-002, p-003, p-004 and 495 more."
    )


async def test_a_drained_worker_is_nobodys_news(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    """A roll-out replaces all Pods: those that held nothing are not told of."""
    async with operating(with_operator(settings), db, queue, served):
        for n in range(5):
            await served.cluster.apply(PODS, a_pod(f"idle-{n}"))
            await served.cluster.remove(PODS, f"idle-{n}")
        _, worker = await in_cluster(served.cluster, db, queue)
        await served.cluster.remove(PODS, "a")
        await eventually(lambda: queued_again(db, worker))
        await eventually(lambda: posted(served))
    assert len(posted(served)) == 1


async def test_the_same_news_is_posted_once_by_two_operators(served: Served) -> None:
    """Its name is made of what it tells: the second one is refused, and that is no failure."""
    before = failures()
    signal = died(a_pod("a"))
    for _ in range(2):
        kube = Kube(served.credentials)
        announcer = Announcer(kube)
        announcer.tell(signal, "queued")
        await announcer.post()
        await kube.close()
    assert len(posted(served)) == 1
    assert failures() == before


async def test_an_event_that_cannot_be_posted_is_counted_and_blocks_nothing(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    """Each of them, also after one that was refused."""
    served.cluster.refuse_kind[EVENTS] = KubernetesError(status=403, message="no")
    async with operating(with_operator(settings), db, queue, served):
        for name in ("a", "b"):
            before = failures()
            _, worker = await in_cluster(served.cluster, db, queue, name)
            await served.cluster.remove(PODS, name)
            await eventually(partial(queued_again, db, worker))
            await eventually(partial(failed_since, before))
    assert posted(served) == []


def failed_since(before: float) -> bool:
    return failures() > before


async def test_a_flood_of_owners_is_cut_off(
    served: Served, announcer: Announcer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many Events a round are enough for anybody; the runs are in the log and in metrics."""
    monkeypatch.setattr(announce, "MOST", 10)
    for n in range(15):
        alone = merged(a_pod(f"p-{n}"), {"metadata": {"ownerReferences": None}})
        announcer.tell(died(alone), "queued")
    await announcer.post()
    assert len(posted(served)) == 10
