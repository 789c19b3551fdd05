"""The operator asks for no right that it does not use, and uses none that it was not given."""

import pytest
from kmock import KubernetesError
from tests.operator import rights
from tests.operator.cluster import PODS, Served
from tests.operator.stage import (
    a_pod,
    in_cluster,
    missed_a_renewal,
    operating,
    queued_again,
    with_operator,
    worker_in,
)
from tests.operator.test_deletion_cost import cost
from tests.support import eventually

from researchcopilot.core.settings import Settings
from researchcopilot.operator import announce
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio
OURS = "researchcopilot.dev"


@pytest.mark.parametrize("costs", [False, True], ids=["reads Pods", "writes their cost"])
async def test_every_verb_is_used_and_none_is_missing(
    costs: bool,
    settings: Settings,
    db: Database,
    queue: Queue,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever Pods make it do: a death, a silent worker, an Event, a cost."""
    monkeypatch.setattr(announce, "ROUND", 0.1)
    ours = with_operator(settings, 1.5, deletion_cost=costs, deletion_cost_s=0.05)
    async with operating(ours, db, queue, served):
        _, worker = await in_cluster(served.cluster, db, queue)
        if costs:
            await eventually(lambda: cost(served, "a"))
        await served.cluster.remove(PODS, "a")
        await eventually(lambda: queued_again(db, worker))
        silent = await worker_in(db, queue, a_pod("gone"))
        await missed_a_renewal(db, silent.worker_id)
        await eventually(lambda: queued_again(db, silent))
        await eventually(lambda: ("", "events", "create") in rights.used(served.cluster.asked))
    assert rights.used(served.cluster.asked) == rights.granted(*(["deletionCost"] if costs else []))


def test_nothing_belongs_to_the_cluster_unless_asked_for() -> None:
    for kind in ("ClusterRole", "ClusterRoleBinding"):
        assert not rights.granted("customResources", "deletionCost", kind="ClusterRole"), kind
    wide = rights.granted("customResources", "clusterWide", kind="ClusterRole")
    assert {right for right in wide if right[0] != OURS} == {
        ("", "pods", "list"), ("", "pods", "watch"),
    }  # fmt: skip


def test_no_right_is_dangerous() -> None:
    """Not to secrets, not to everything, and nothing that would start a Pod."""
    everything = rights.granted("customResources", "deletionCost", "clusterWide")
    everything |= rights.granted("customResources", "clusterWide", kind="ClusterRole")
    for group, resource, verb in everything:
        assert "*" not in (group, resource, verb)
        assert resource not in ("secrets", "pods/exec", "deployments", "roles")
        assert (resource, verb) not in (("pods", "create"), ("pods", "delete"))


async def test_the_comparison_finds_what_is_not_granted(served: Served) -> None:
    """It would be no use if it could not fail."""
    served.cluster.refuse = KubernetesError(status=403)
    client = served.cluster.clients[0]
    async with client.get("/api/v1/namespaces/research/secrets") as answer:
        assert answer.status == 403
    with pytest.raises(AssertionError, match="secrets"):
        rights.check(served.cluster.asked)
    served.cluster.asked.clear()
