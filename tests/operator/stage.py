"""The operator in this process, over the servers of this test and an API server of its own; Pods as
they look, and workers in them that hold runs."""

import asyncio
import copy
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from tests.operator.cluster import NAMESPACE, PODS, Cluster, Json, Served
from tests.operator.rude import Rude
from tests.support import claim, eventually, new_run, prompt, submit

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import WorkerInfo
from researchcopilot.core.settings import Settings
from researchcopilot.operator.main import work
from researchcopilot.runtime.health import Health
from researchcopilot.runtime.loop import Stop
from researchcopilot.service import Service
from researchcopilot.storage import workers
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

LABELS = {"app.kubernetes.io/instance": "rc", "app.kubernetes.io/component": "worker"}
SELECTOR = ",".join(f"{name}={value}" for name, value in LABELS.items())
OTHERS: Json = {"metadata": {"labels": {"app.kubernetes.io/instance": "another"}}}
# When the processes here have started, unless it matters: before all that is told of them.
STARTED = datetime(2026, 11, 30, 11, 0, tzinfo=UTC)
LEASE_S = 60.0  # so long that no lease has a hand in what is looked at here


def with_operator(settings: Settings, lease_s: float = LEASE_S, **fields: Any) -> Settings:
    fields = {"namespace": NAMESPACE, "selector": SELECTOR, "custom_resources": False, **fields}
    return replace(
        settings,
        operator=replace(settings.operator, **fields),
        recovery=replace(settings.recovery, lease_s=lease_s, spread_s=0.2),
    )


@dataclass(frozen=True, slots=True)
class Operating:
    service: Service
    task: "asyncio.Task[None]"


@asynccontextmanager
async def operating(
    settings: Settings, db: Database, queue: Queue, served: Served | Rude, *, wait: bool = True
) -> AsyncIterator[Operating]:
    """The operator, until the end of the block; ready when it begins, if it is waited for."""
    service = Service(settings, db, queue, Health(), Stop())
    task = asyncio.create_task(work(service, served.credentials))
    try:
        if wait and isinstance(served, Served):
            cluster = served.cluster
            await eventually(lambda: task.done() or is_watching(service, cluster))
        yield Operating(service, task)
    finally:
        service.stop()
        await asyncio.wait_for(task, 20)


def is_watching(service: Service, cluster: Cluster) -> bool:
    return service.health.answer("/readyz")[0] == 200 and cluster.watchers > 0


# Pods


def a_pod(name: str, **more: Any) -> Json:
    """A worker's Pod that runs and is ready, of a ReplicaSet."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": new_id(),
            "labels": LABELS,
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": "rc-researchcopilot-worker-default-abc",
                    "uid": "5b1c0c0e-0000-4000-8000-00000000abcd",
                    "controller": True,
                }
            ],
        },
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "ContainersReady", "status": "True"},
            ],
            "containerStatuses": [
                {
                    "name": "worker",
                    "restartCount": 0,
                    "ready": True,
                    "state": {"running": {"startedAt": stamp(datetime.now(UTC))}},
                    "lastState": {},
                }
            ],
        },
    }
    return merged(pod, more)


def merged(body: Mapping[str, Any], more: Mapping[str, Any]) -> Json:
    """A merge patch: null removes, lists are replaced."""
    found = copy.deepcopy(dict(body))
    for name, value in more.items():
        if value is None:
            found.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(found.get(name), Mapping):
            found[name] = merged(found[name], value)
        else:
            found[name] = copy.deepcopy(value)
    return found


def stamp(at: datetime) -> str:
    """As Kubernetes writes it: whole seconds, cut off."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def container(**fields: Any) -> Json:
    """The status of a Pod whose worker's container is so."""
    return {"status": {"containerStatuses": [{"name": "worker", "restartCount": 0, **fields}]}}


# Workers in them


@dataclass(frozen=True, slots=True)
class InPod:
    worker_id: str
    run_ids: list[str]


async def worker_in(
    db: Database,
    queue: Queue,
    pod: Json,
    runs: int = 1,
    /,
    *,
    started: datetime | None = None,
    lease_s: float = LEASE_S,
    **fields: Any,
) -> InPod:
    """A worker that has registered from that Pod and executes so many runs."""
    meta = pod["metadata"]
    info = WorkerInfo(
        new_id(), {"runs": 8}, (), host=meta["name"], pid=1, version="0", pod=meta["name"],
        pod_uid=meta["uid"], pod_namespace=meta["namespace"],
        process_started_at=started or datetime.now(UTC),
    )  # fmt: skip
    await workers.register(db, replace(info, **fields))
    run_ids = await submit(db, queue, *(new_run() for _ in range(runs))) if runs else []
    if run_ids:
        await queue.take("runs", info.worker_id, runs)
        await claim(db, run_ids, worker_id=info.worker_id, lease_s=lease_s)
    return InPod(info.worker_id, run_ids)


async def many_workers(db: Database, pods: list[Json], each: int) -> list[str]:
    """The same for many Pods in a few statements; the ids of all their runs."""
    uids = [pod["metadata"]["uid"] for pod in pods]
    async with db.transaction() as connection:
        await connection.execute(
            b"INSERT INTO workers (worker_id, queues, agents, host, pid, version, pod, pod_uid,"
            b" pod_namespace, process_started_at)"
            b" SELECT gen_random_uuid(), '{\"runs\": 8}', '{}', 'h', 1, '0', p, u, %(n)s,"
            b" %(started)s FROM unnest(%(pods)s::text[], %(uids)s::text[]) AS x(p, u)",
            {
                "pods": [pod["metadata"]["name"] for pod in pods],
                "uids": uids,
                "n": NAMESPACE,
                "started": STARTED,
            },
        )
        cursor = await connection.execute(
            b"INSERT INTO runs (run_id, workspace_id, agent, queue, serial, status, run_at,"
            b" ready_at, deadline, claim_no, attempts, max_attempts, worker_id, lease_until, input,"
            b" created_at) SELECT gen_random_uuid(), 1, 'echo', 'runs', false, 'running', now(),"
            b" now(), now() + interval '1 day', 1, 1, 3, w.worker_id, now() + interval '1 hour',"
            b" '1', now() FROM workers w, generate_series(1, %(each)s)"
            b" WHERE w.pod_uid = ANY (%(uids)s) RETURNING run_id",
            {"each": each, "uids": uids},
        )
        run_ids = [row[0] for row in await cursor.fetchall()]
        await connection.execute(
            b"INSERT INTO claims (run_id, claim_no, workspace_id, worker_id, claim_id, started_at)"
            b" SELECT run_id, 1, 1, worker_id, gen_random_uuid(), now() FROM runs"
            b" WHERE run_id = ANY (%(ids)s::uuid[])",
            {"ids": run_ids},
        )
    return run_ids


async def in_cluster(
    cluster: Cluster, db: Database, queue: Queue, name: str = "a", runs: int = 1
) -> tuple[Json, InPod]:
    """A Pod with a worker in it."""
    pod = a_pod(name)
    await cluster.apply(PODS, pod)
    return pod, await worker_in(db, queue, pod, runs, started=STARTED)


async def statuses(db: Database, run_ids: list[str]) -> list[str]:
    rows = await db.rows(
        b"SELECT status FROM runs WHERE run_id = ANY (%(ids)s::uuid[])", {"ids": run_ids}
    )
    return sorted(row[0] for row in rows)


async def all_queued(db: Database, run_ids: list[str]) -> bool:
    return set(await statuses(db, run_ids)) == {"queued"}


async def queued_again(db: Database, found: InPod) -> bool:
    return await all_queued(db, found.run_ids)


def listed(settings: Settings) -> list[str]:
    """The runs that wait in their list, head first."""
    with prompt(settings) as client:
        return [text.partition(".")[2] for text in client.lrange("queue:runs", 0, -1)]


async def missed_a_renewal(db: Database, worker_id: str) -> None:
    await _seen(db, worker_id, -45.0)


async def renews(db: Database, worker_id: str) -> None:
    """It is not silent for as long as a test takes, however short the leases are."""
    await _seen(db, worker_id, 3600.0)


async def falls_silent(db: Database, worker_id: str) -> None:
    """Of one that was said to renew."""
    await _seen(db, worker_id, -3645.0)


async def _seen(db: Database, worker_id: str, seconds: float) -> None:
    await db.execute(
        b"UPDATE workers SET seen_at = seen_at + make_interval(secs => %(s)s)"
        b" WHERE worker_id = %(w)s::uuid",
        {"s": seconds, "w": worker_id},
    )
