"""A worker's Pod dies and its runs are queued again at once, whatever their leases."""

import pytest
from tests.operator.cluster import PODS, Served
from tests.operator.stage import in_cluster, operating, queued_again, with_operator
from tests.support import eventually

from researchcopilot.core.settings import Settings
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


async def test_a_deleted_pod_gives_its_runs_back(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    async with operating(with_operator(settings), db, queue, served):
        _, worker = await in_cluster(served.cluster, db, queue, runs=3)
        await served.cluster.remove(PODS, "a")
        await eventually(lambda: queued_again(db, worker))
