"""The operator as the process that it is: two of them, one that is killed, one that is told to
end, and what it needs of memory where there are very many Pods."""

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Parts
from tests.operator.cluster import NAMESPACE, PODS, Served
from tests.operator.stage import OTHERS, SELECTOR, a_pod, all_queued, many_workers, merged, statuses
from tests.support import eventually

from researchcopilot.dev.parts import Part
from researchcopilot.storage.db import Database

pytestmark = pytest.mark.anyio
Operator = Callable[[str], "asyncio.Future[Part]"]
MEGABYTES = 150


@pytest.fixture
def operator(parts: Parts, served: Served, tmp_path: Path) -> Operator:
    """Starts one more, with that lease, which finds the API server by its kubeconfig."""
    (tmp_path / "kubeconfig").write_text(served.kubeconfig())
    environment = {
        "KUBECONFIG": str(tmp_path / "kubeconfig"),
        "RC_OPERATOR_SELECTOR": SELECTOR,
        "RC_OPERATOR_CUSTOM_RESOURCES": "false",
        "RC_RECLAIM_SPREAD_SECONDS": "0.2",
    }

    def start(lease_s: str) -> "asyncio.Future[Part]":
        environment["RC_LEASE_SECONDS"] = lease_s
        return asyncio.ensure_future(asyncio.to_thread(parts, "operator", **environment))

    return start


async def test_an_operator_that_is_killed_and_two_at_once_lose_nothing_and_do_nothing_twice(
    db: Database, served: Served, operator: Operator, parts: Parts
) -> None:
    """Between whichever two writes it dies. Each run has lost one worker, and is done by the next;
    what was committed and not pushed is found by the janitor's probe."""
    first = await operator("3")
    early = await dying(db, served, "early")
    first.kill()
    second, third = await operator("3"), await operator("3")
    late = await dying(db, served, "late")
    third.kill()
    await eventually(lambda: all_queued(db, early + late))
    for name in ("janitor", "worker"):
        await asyncio.to_thread(parts, name)
    await eventually(lambda: all_done(db), within=20)
    rows = await db.rows(b"SELECT DISTINCT losses, claim_no, attempts FROM runs")
    assert rows == [(1, 2, 1)]
    assert second.alive


async def dying(db: Database, served: Served, name: str) -> list[str]:
    """Thirty Pods with two runs each; returns when the first of these was taken back."""
    pods = [a_pod(f"{name}-{n}") for n in range(30)]
    for pod in pods:
        await served.cluster.apply(PODS, pod)
    run_ids = await many_workers(db, pods, 2)
    for pod in pods:
        await served.cluster.remove(PODS, pod["metadata"]["name"])

    async def begun() -> bool:
        return "queued" in await statuses(db, run_ids)

    await eventually(begun)
    return run_ids


async def all_done(db: Database) -> bool:
    return await db.rows(b"SELECT DISTINCT status FROM runs") == [("succeeded",)]


async def test_sigterm_ends_it_within_seconds_and_ten_thousand_pods_are_no_load(
    db: Database, served: Served, operator: Operator
) -> None:
    """Of PrefectHQ/prefect#22208: an operator that filters for itself dies of its memory. Only the
    workers come over the wire, listed once and told at most once more."""
    other = merged(a_pod("other"), OTHERS)
    for n in range(10_000):
        meta = {**other["metadata"], "name": f"o-{n}"}
        served.cluster.objects[PODS, NAMESPACE, f"o-{n}"] = {**other, "metadata": meta}
    pods = [a_pod(f"w-{n}") for n in range(20)]
    for pod in pods:
        await served.cluster.apply(PODS, pod)
    run_ids = await many_workers(db, pods, 2)
    found = await operator("60")
    assert served.cluster.sent <= 40
    for _ in range(200):
        await served.cluster.tell(PODS, "MODIFIED", other)
    for pod in pods:
        await served.cluster.remove(PODS, pod["metadata"]["name"])
    await eventually(lambda: all_queued(db, run_ids))
    assert served.cluster.sent <= 60
    assert len([r for r in served.cluster.asked if r.resource == PODS]) < 10
    print(f"the operator beside 10,000 other Pods: {resident(found)} MB resident")
    assert resident(found) < MEGABYTES
    began = time.monotonic()
    assert await asyncio.to_thread(found.stop) == 0
    assert time.monotonic() - began < 10


def resident(part: Part) -> int:
    text = Path(f"/proc/{part.pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", text)[0]) // 1024
