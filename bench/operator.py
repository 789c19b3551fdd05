"""The operator: from the moment at which the API server tells of a death to the run being queued
again, for each kind of death; five hundred at once; its memory beside ten thousand other Pods.

The operator and its servers are processes of their own; the API server is the emulator of the
tests, over real HTTP. Told and queued are by the clock of this machine. Leases last an hour.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from bench.measure import Measured, figure, percentile, resident_mb
from bench.work import opened
from researchcopilot.dev.parts import Part
from researchcopilot.dev.stack import Plan, Stack
from researchcopilot.storage.db import Database

Json = dict[str, Any]
ONE_BY_ONE = 100
AT_ONCE = 500
OTHER_PODS = 10_000


def measure(rounds: int) -> list[Measured]:
    return asyncio.run(_measure())


@dataclass(frozen=True, slots=True)
class Scene:
    served: Any  # tests.operator.cluster.Served: of the tests' requirements, and so not typed here
    db: Database
    part: Part


async def _measure() -> list[Measured]:
    from tests.operator import signal_cases as said
    from tests.operator.stage import container

    deaths: list[tuple[str, str, Json]] = [
        ("deleted", "DELETED", {}),
        ("drained: evicted by the API", "DELETED", said.disrupted("EvictionByEvictionAPI")),
        ("evicted by its kubelet", "MODIFIED", said.ended("Failed", "Evicted")),
        ("preempted", "DELETED", said.disrupted("PreemptionByScheduler")),
        ("its node was lost", "DELETED", said.disrupted("DeletionByTaintManager")),
        ("OOM: container ended", "MODIFIED", container(state=said.OOM)),
        ("error: container ended", "MODIFIED", container(state=said.ERROR)),
        ("container restarted", "MODIFIED",
         container(state=said.AGAIN, lastState=said.OOM, restartCount=1)),
    ]  # fmt: skip
    found: list[Measured] = []
    async with _scene() as scene:
        for name, kind, more in deaths:
            late = [await _death(scene, kind, more) for _ in range(ONE_BY_ONE)]
            found += _figures(f"told to queued, {name}", late)
        found += _figures(f"told to queued, {AT_ONCE} at once", await _burst(scene))
        found.append(
            figure(
                "memory of the operator",
                "MB",
                [resident_mb(scene.part.pid)],
                f"beside {OTHER_PODS} other Pods",
            )
        )
    return found


@asynccontextmanager
async def _scene() -> AsyncIterator[Scene]:
    from tests.operator.cluster import NAMESPACE, PODS, serving
    from tests.operator.stage import OTHERS, SELECTOR, a_pod, merged

    async with serving() as served:
        for number in range(OTHER_PODS):
            pod = merged(a_pod(f"other-{number}"), OTHERS)
            served.cluster.objects[PODS, NAMESPACE, pod["metadata"]["name"]] = pod
        with Stack(Plan(environ={"RC_LOG_LEVEL": "error"})) as stack:
            await asyncio.to_thread(stack.start_servers)
            await asyncio.to_thread(stack.command, "migrate")
            config = stack.folder / "kubeconfig"
            config.write_text(served.kubeconfig())
            part = stack.add(
                "operator",
                "operator",
                KUBECONFIG=str(config),
                RC_OPERATOR_SELECTOR=SELECTOR,
                RC_OPERATOR_CUSTOM_RESOURCES="false",
                RC_LEASE_SECONDS="3600",
            )
            await asyncio.to_thread(part.start)
            async with opened(stack.settings) as (db, _):
                yield Scene(served, db, part)


async def _death(scene: Scene, kind: str, more: Json) -> float:
    """Milliseconds."""
    from tests.operator.cluster import PODS
    from tests.operator.stage import a_pod, many_workers, merged

    pod = a_pod("one")
    await scene.served.cluster.tell(PODS, "ADDED", pod)
    [run_id] = await many_workers(scene.db, [pod], 1)
    began = time.time()
    await scene.served.cluster.tell(PODS, kind, merged(pod, more))
    [late] = await _queued(scene.db, [run_id], began)
    return late


async def _burst(scene: Scene) -> list[float]:
    from tests.operator.cluster import PODS
    from tests.operator.stage import a_pod, many_workers

    pods = [a_pod(f"many-{number}") for number in range(AT_ONCE)]
    for pod in pods:
        await scene.served.cluster.tell(PODS, "ADDED", pod)
    run_ids = await many_workers(scene.db, pods, 1)
    began = time.time()
    for pod in pods:
        await scene.served.cluster.tell(PODS, "DELETED", pod)
    return await _queued(scene.db, run_ids, began)


async def _queued(db: Database, run_ids: list[str], began: float) -> list[float]:
    """For each its milliseconds, once all are queued again. Raises TimeoutError."""
    async with asyncio.timeout(60):
        while True:
            rows = await db.rows(
                b"SELECT extract(epoch FROM c.finished_at)::float8 FROM claims c JOIN runs r"
                b" USING (run_id) WHERE r.status = 'queued' AND r.run_id = ANY (%(ids)s::uuid[])",
                {"ids": run_ids},
            )
            if len(rows) == len(run_ids):
                return [(row[0] - began) * 1000 for row in rows]
            await asyncio.sleep(0.005)


def _figures(name: str, late: list[float]) -> list[Measured]:
    return [
        figure(f"{name}, p50", "ms", [percentile(late, 0.5)], f"{len(late)} deaths"),
        figure(f"{name}, p99", "ms", [percentile(late, 0.99)]),
    ]
