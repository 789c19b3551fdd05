"""Scale-in that spares the busy: what is written on Pods, when, and what is left alone."""

from functools import partial

import pytest
from kmock import KubernetesError
from tests.operator.cluster import PODS, Json, Served
from tests.operator.stage import (
    a_pod,
    in_cluster,
    merged,
    missed_a_renewal,
    operating,
    queued_again,
    renews,
    with_operator,
    worker_in,
)
from tests.support import eventually, metric

from researchcopilot.core.models import Outcome
from researchcopilot.core.settings import Settings
from researchcopilot.operator.deletion_cost import ANNOTATION, MANAGER, Marked, cost_of, read_mark
from researchcopilot.storage import moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio
COST_WRITES = "researchcopilot_operator_cost_writes_total"


def cost(served: Served, name: str) -> str | None:
    found = next(o for (r, _, n), o in served.cluster.objects.items() if r == PODS and n == name)
    value: str | None = (found.raw["metadata"].get("annotations") or {}).get(ANNOTATION)
    return value


def writes(served: Served) -> list[Json]:
    return [r.data for r in served.cluster.asked if r.method.value == "PATCH"]


def annotated(value: str, **more: object) -> Json:
    return merged(a_pod("a"), {"metadata": {"annotations": {ANNOTATION: value}, **more}})


async def test_a_busy_worker_costs_more_the_longer_its_run_goes_on_and_an_idle_one_nothing(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    """Written when the class changes, and not before: three classes are three writes."""
    eager = with_operator(settings, deletion_cost=True, deletion_cost_s=0.05)
    before = metric(COST_WRITES)
    async with operating(eager, db, queue, served):
        _, worker = await in_cluster(served.cluster, db, queue)
        idle = a_pod("idle")
        await served.cluster.apply(PODS, idle)
        await worker_in(db, queue, idle, 0)
        await eventually(lambda: cost(served, "a") == "100")
        await db.execute(b"UPDATE claims SET started_at = started_at - interval '2 minutes'")
        await eventually(lambda: cost(served, "a") == "200")
        done = Outcome(worker.run_ids[0], 1, worker.worker_id, "succeeded", result="1")
        await moves.finish(db, worker.worker_id, [done])
        await eventually(lambda: cost(served, "a") is None)
        # It counts a write when it has heard of it, which is after the cluster shows it.
        await eventually(lambda: metric(COST_WRITES) == before + 3)
    assert len(writes(served)) == 3
    assert cost(served, "idle") is None


async def test_nothing_is_written_unless_it_is_asked_for(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    """A busy Pod would have its cost many times over: between the two who are missed lies a whole
    round of the comparison, each half a second; costs would be written each twentieth of one."""
    eager = with_operator(settings, 1.5, deletion_cost=False, deletion_cost_s=0.05)
    async with operating(eager, db, queue, served):
        _, busy = await in_cluster(served.cluster, db, queue)
        await renews(db, busy.worker_id)
        for name in ("gone", "gone-too"):
            silent = await worker_in(db, queue, a_pod(name))
            await missed_a_renewal(db, silent.worker_id)
            await eventually(partial(queued_again, db, silent))
    assert writes(served) == []


async def test_a_write_that_fails_is_tried_again_and_blocks_nothing(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    """No right to patch, a Pod that was deleted meanwhile."""
    before = metric("researchcopilot_operator_failures_total", what="deletion_cost")
    eager = with_operator(settings, deletion_cost=True, deletion_cost_s=0.05)
    served.cluster.refuse_patch = KubernetesError(status=403, message="no right to patch")
    async with operating(eager, db, queue, served):
        await in_cluster(served.cluster, db, queue)
        await eventually(
            lambda: metric("researchcopilot_operator_failures_total", what="deletion_cost") > before
        )
        served.cluster.refuse_patch = None
        await eventually(lambda: cost(served, "a") == "100")


def test_another_ones_annotation_is_left_alone() -> None:
    """Karpenter writes the same one; people do."""
    fields: Json = {"f:metadata": {"f:annotations": {f"f:{ANNOTATION}": {}}}}
    for manager, ours in ((MANAGER, True), ("karpenter", False), ("kubectl", False)):
        pod = annotated("100", managedFields=[{"manager": manager, "fieldsV1": fields}])
        assert (read_mark(pod) is not None) is ours
    assert read_mark(annotated("7")) is None
    assert read_mark(annotated("200")) == Marked("a", "200")
    assert read_mark(a_pod("a")) == Marked("a", None)


def test_a_pod_that_is_being_deleted_is_not_written_to() -> None:
    assert read_mark(merged(a_pod("a"), {"metadata": {"deletionTimestamp": "2026"}})) is None


def test_classes_are_few() -> None:
    """Each change is a write for the API server and an event for every watcher."""
    found = [cost_of(seconds) for seconds in (None, 0.0, 59, 61, 599, 601, 3599, 3601, 86400)]
    assert found == [None, "100", "100", "200", "200", "300", "300", "400", "400"]
    assert cost_of(-1.0) == "100"
