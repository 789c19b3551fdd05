"""An API server for each test that wants one: `served`, or with objects of ours `cluster`, which
`scene` puts an operator and a worker to. At the end of each what was asked of it is held against
the rights that the chart gives."""

from collections.abc import AsyncIterator

import pytest
from tests.operator import rights
from tests.operator.cluster import Served, serving
from tests.operator.customs import Customs, customs
from tests.operator.scene import Scene
from tests.operator.stage import with_operator

from researchcopilot.core.settings import Settings
from researchcopilot.operator import research_runs, run_schedules
from researchcopilot.operator.context import Context
from researchcopilot.operator.kube import Kube
from researchcopilot.operator.research_runs import ResearchRuns
from researchcopilot.operator.run_schedules import RunSchedules
from researchcopilot.runtime.loop import Stop
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.submit import Submitter


@pytest.fixture
async def served(anyio_backend: str) -> AsyncIterator[Served]:
    async with serving() as found:
        yield found
    rights.check(found.cluster.asked, wide=found.wide)


@pytest.fixture
async def cluster(anyio_backend: str) -> AsyncIterator[tuple[Served, Customs]]:
    async with customs() as found:
        yield found
    rights.check(found[0].cluster.asked, wide=found[0].wide)


@pytest.fixture
def ours(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """An operator that serves objects of ours: with quick beats, and lists only at its start."""
    for room in (research_runs, run_schedules):
        monkeypatch.setattr(room, "WRITES_S", 0.05)
    monkeypatch.setattr(run_schedules, "TICKS_S", 0.1)
    monkeypatch.setattr(ResearchRuns, "beat_s", 0.05)
    monkeypatch.setattr(RunSchedules, "beat_s", 0.05)
    return with_operator(settings, custom_resources=True, resync_s=3600.0)


@pytest.fixture
def api(cluster: tuple[Served, Customs]) -> Customs:
    return cluster[1]


@pytest.fixture
def scene(ours: Settings, db: Database, queue: Queue, cluster: tuple[Served, Customs]) -> Scene:
    return Scene(ours, db, queue, cluster[0])


@pytest.fixture
async def context(
    ours: Settings, db: Database, queue: Queue, cluster: tuple[Served, Customs]
) -> AsyncIterator[Context]:
    """What an operator's loop is given; beside that of `operating`."""
    submitter, kube = Submitter(db, queue), Kube(cluster[0].credentials)
    yield Context(ours, "research", db, queue, submitter, kube, Stop())
    await submitter.close()
    await kube.close()
