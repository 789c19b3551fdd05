"""Workers that are killed: nothing of any of their queues is lost, and a Pod that comes back under
the same name is another worker."""

import os
from pathlib import Path

import pytest
from tests.conftest import Parts
from tests.support import (
    eventually,
    new_run,
    prompt,
    row,
    running,
    submit,
    submit_one,
    waits_in,
    with_recovery,
)

from researchcopilot.core.settings import Settings
from researchcopilot.janitor.entries import clear_dead
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio
QUEUES = ("runs", "system", "third")


async def test_03_kill_9_loses_nothing_of_any_of_its_queues(
    workers: Parts, settings: Settings, db: Database, queue: Queue
) -> None:
    """rq#1716: the reliable pop is silently off as soon as a worker listens to two queues.

    Guard: one connection and one list for each queue, and no other way to take. Red if
    storage/lua/take.lua pops instead of moving.
    """
    runs = [new_run(agent="sleep", queue=name) for name in QUEUES for _ in range(2)]
    await submit(db, queue, *runs)
    async with db.transaction() as connection:
        await connection.execute(b"SELECT 1 FROM runs FOR UPDATE")
        worker = workers("worker", RC_WORKER_QUEUES=",".join(f"{name}=2" for name in QUEUES))
        [(worker_id,)] = await db.rows(b"SELECT worker_id FROM workers")

        async def all_taken() -> bool:
            held = [await queue.in_hands(name, worker_id) for name in QUEUES]
            return [len(entries) for entries in held] == [2, 2, 2]

        await eventually(lambda: waits_in(db, "claim_1"))
        await eventually(all_taken)
        worker.kill()
        await db.rows(
            b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%claim_1%'"
            b" AND wait_event_type = 'Lock' AND datname = current_database()"
        )
    quick = with_recovery(settings, lease_s=0.2).recovery

    async def all_wait() -> bool:
        await clear_dead(db, queue, quick)
        with prompt(settings) as client:
            found = [entry for name in QUEUES for entry in client.lrange(f"queue:{name}", 0, -1)]
        return sorted(found) == sorted(f"1.{run.run_id}" for run in runs)

    await eventually(all_wait)
    assert {(await row(db, run.run_id))["claim_no"] for run in runs} == {0}


async def test_06_a_pod_that_comes_back_under_its_name_is_another_worker(
    workers: Parts, db: Database, queue: Queue, tmp_path: Path
) -> None:
    """procrastinate#1518, oban#862: a new process of the same name keeps the heartbeat of the dead
    one alive, and its jobs are `doing` for ever.

    Guard: a worker's id is made at its start. Red if worker/main.py took it from the Pod:
    `worker_id=new_id(),`
    """
    workers.environment["RC_POD_NAME"] = "worker-0"
    workers("janitor")
    first = workers("worker")
    run_id = await submit_one(db, queue, "sleep", input=30)
    before = (await running(db, run_id))["worker_id"]
    await eventually((tmp_path / f"began-{run_id}").exists)
    os.kill(first.pid, 9)
    workers("worker")
    after = (await running(db, run_id, claim_no=2))["worker_id"]
    assert after != before
    pods = await db.rows(b"SELECT pod, count(*) FROM workers GROUP BY pod")
    assert pods == [("worker-0", 2)]
