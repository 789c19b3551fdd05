"""Many at once: five hundred deaths."""

from functools import partial

import pytest
from tests.operator.cluster import PODS, Served
from tests.operator.stage import (
    a_pod,
    all_queued,
    listed,
    many_workers,
    operating,
    with_operator,
)
from tests.support import eventually

from researchcopilot.core.settings import Settings
from researchcopilot.storage import moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


async def test_five_hundred_deaths_at_once_are_a_few_calls(
    settings: Settings, db: Database, queue: Queue, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node pool that goes away. Each run once, none left, and not one call for each Pod."""
    calls = 0
    reclaim = moves.reclaim

    async def counted(*args: object, **kwargs: object) -> moves.Moved:
        nonlocal calls
        calls += 1
        return await reclaim(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(moves, "reclaim", counted)
    async with operating(with_operator(settings), db, queue, served):
        pods = [a_pod(f"w-{n}") for n in range(500)]
        for pod in pods:
            await served.cluster.apply(PODS, pod)
        everything = await many_workers(db, pods, 2)
        for pod in pods:
            await served.cluster.remove(PODS, pod["metadata"]["name"])
        await eventually(partial(all_queued, db, everything), within=30)
        await eventually(lambda: len(listed(settings)) >= len(everything))
    assert calls < 100
    assert sorted(listed(settings)) == sorted(everything)
