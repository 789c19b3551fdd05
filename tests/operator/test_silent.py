"""Workers that hold runs and have missed a renewal: the comparison at the start, events that were
missed, Pods that are still there. A worker that renews is never touched here, whatever is said."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from tests.operator.cluster import PODS, Served
from tests.operator.signal_cases import UNREACHED
from tests.operator.stage import (
    a_pod,
    falls_silent,
    in_cluster,
    merged,
    missed_a_renewal,
    operating,
    queued_again,
    renews,
    stamp,
    statuses,
    with_operator,
    worker_in,
)
from tests.support import claim, eventually, ledger, metric, new_run, submit

from researchcopilot.core.settings import Settings
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio
QUICK = 1.5  # looked at each half a second; runs are claimed for a minute all the same


async def test_at_its_start_it_finds_whose_pods_are_gone(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    """Nobody watched when they died. Pods that are there, and workers that renew, keep their runs:
    those of another cluster, another namespace, of no Pod at all."""
    dead = [await worker_in(db, queue, a_pod(f"dead-{n}"), 2) for n in range(5)]
    _, slow = await in_cluster(served.cluster, db, queue, "slow")
    elsewhere = await worker_in(db, queue, a_pod("elsewhere"), pod_namespace="other")
    nowhere = await worker_in(db, queue, a_pod("no"), pod_uid=None, pod=None, pod_namespace=None)
    for worker in (*dead, slow, elsewhere, nowhere):
        await missed_a_renewal(db, worker.worker_id)
    unknown = await worker_in(db, queue, a_pod("of-another-cluster"))
    async with operating(with_operator(settings), db, queue, served):
        for worker in dead:
            await eventually(partial(queued_again, db, worker))
            assert await ledger(db, worker.run_ids[0]) == [(1, "lost", False)]
    for worker in (slow, elsewhere, nowhere, unknown):
        assert await statuses(db, worker.run_ids) == ["running"]


async def test_an_event_that_was_missed_costs_a_renewal(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    """The watch is too old (410) and begins anew with a list, which does not tell who is gone."""
    async with operating(with_operator(settings, QUICK), db, queue, served):
        pod, worker = await in_cluster(served.cluster, db, queue)
        _, other = await in_cluster(served.cluster, db, queue, "b")
        served.cluster.objects[PODS, pod["metadata"]["namespace"], "a"].delete()
        served.cluster.forget()
        await served.cluster.cut()
        await missed_a_renewal(db, worker.worker_id)
        await eventually(lambda: queued_again(db, worker))
        await eventually(lambda: served.cluster.watchers > 0)
        # And the watch is good again.
        await served.cluster.remove(PODS, "b")
        await eventually(lambda: queued_again(db, other))


@pytest.mark.parametrize(
    ("reason", "more"),
    [
        ("node_lost", UNREACHED),
        (
            "drain_overrun",
            {"metadata": {"deletionTimestamp": stamp(datetime.now(UTC) - timedelta(minutes=1))}},
        ),
    ],
)
async def test_two_weak_signs_together_are_one_that_counts(
    reason: str,
    more: dict[str, object],
    settings: Settings,
    db: Database,
    queue: Queue,
    served: Served,
) -> None:
    """The Pod alone says little, and so does a missed renewal."""
    before = metric("researchcopilot_reclaims_total", reason=reason, status="queued")
    async with operating(with_operator(settings, QUICK), db, queue, served):
        workers = []
        for name, looks in (("both", more), ("only-silent", {}), ("only-looks", more)):
            pod = merged(a_pod(name), looks)
            await served.cluster.apply(PODS, pod)
            workers.append(await worker_in(db, queue, pod))
            await renews(db, workers[-1].worker_id)
        both, silent, _ = workers
        for worker in (silent, both):
            await falls_silent(db, worker.worker_id)
        await eventually(lambda: queued_again(db, both))
    assert await statuses(db, silent.run_ids) == ["running"]
    assert metric("researchcopilot_reclaims_total", reason=reason, status="queued") == before + 1


async def test_nothing_is_asked_where_all_is_well(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    """The net costs the API server nothing: it asks about silent workers alone."""
    async with operating(with_operator(settings, 0.3), db, queue, served):
        pod = a_pod("a")
        await served.cluster.apply(PODS, pod)
        # Idle, and so not asked about even when it is silent; then one that renews.
        await worker_in(db, queue, pod, 0)
        well = await worker_in(db, queue, pod, 0)
        await renews(db, well.worker_id)
        await claim(db, await submit(db, queue, new_run()), worker_id=well.worker_id)
        silent = await worker_in(db, queue, a_pod("gone"))
        await eventually(lambda: queued_again(db, silent))
    lists = [r for r in served.cluster.asked if "fieldSelector" in r.params]
    assert {r.params["fieldSelector"] for r in lists} == {"metadata.name=gone"}


async def test_a_silent_worker_is_left_to_its_lease_while_nobody_can_be_asked(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    """No answer is not the answer that it is gone."""
    async with operating(with_operator(settings, QUICK), db, queue, served):
        worker = await worker_in(db, queue, a_pod("gone"))
        await served.close()
        before = metric("researchcopilot_operator_failures_total", what="silent")
        await missed_a_renewal(db, worker.worker_id)
        await eventually(
            lambda: metric("researchcopilot_operator_failures_total", what="silent") > before + 1
        )
        assert await statuses(db, worker.run_ids) == ["running"]
        await served.open()
        await eventually(lambda: queued_again(db, worker))
