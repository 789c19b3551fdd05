"""Workers among faults: servers that restart, processes that are stopped, killed or blocked. No run
is lost, none ends twice, and a server that goes away is ridden out, not a reason to exit."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from tests.conftest import Parts
from tests.services.conftest import Fragile
from tests.support import (
    empty,
    ended,
    eventually,
    ledger,
    new_run,
    row,
    running,
    submit,
    submit_one,
    with_recovery,
    working,
)

from researchcopilot.agents.contract import Context
from researchcopilot.core.models import Entry
from researchcopilot.dev.parts import Part
from researchcopilot.storage import events
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


@pytest.fixture
async def far(fragile: Fragile, anyio_backend: str) -> AsyncIterator[tuple[Database, Queue]]:
    """Clients of the servers that may be stopped."""
    db, queue = Database(fragile.settings.database), Queue(fragile.settings.redis)
    await db.open()
    try:
        yield db, queue
    finally:
        fragile.start()
        await queue.close()
        await db.close()


async def in_thread(call: Any) -> None:
    """Servers are stopped and started outside of the loop, which the worker lives in."""
    await asyncio.to_thread(call)


class Gate:
    """An agent that waits, then reads, tells, and steps."""

    def __init__(self) -> None:
        self.inside = 0
        self.open = asyncio.Event()

    async def __call__(self, ctx: Context, given: Any) -> Any:
        self.inside += 1
        await self.open.wait()
        messages = await ctx.messages()
        await ctx.emit("said", {})
        return [await ctx.step("a", lambda: given), len(messages)]


# Servers


async def test_a_restart_of_postgres_is_ridden_out(
    fragile: Fragile, far: tuple[Database, Queue]
) -> None:
    """Step, messages and finish wait for it; the lease still allowed, so each counts."""
    db, queue = far
    gate = Gate()
    long = with_recovery(fragile.settings, lease_s=15.0)
    async with working(long, db, queue, {"it": gate}):
        ids = await submit(db, queue, *(new_run(agent="it", input=n) for n in range(3)))
        await eventually(lambda: gate.inside == 3)
        await in_thread(fragile.postgres.stop)
        gate.open.set()
        await in_thread(fragile.postgres.start)
        for n, run_id in enumerate(ids):
            found = await ended(db, run_id)
            assert (found["status"], found["result"]) == ("succeeded", [n, 1])
            assert await ledger(db, run_id) == [(1, "succeeded", True)]
        # What comes after is taken as before.
        assert (await ended(db, await submit_one(db, queue, "it")))["status"] == "succeeded"


async def test_a_finish_that_waits_for_postgres_counts(
    fragile: Fragile, far: tuple[Database, Queue]
) -> None:
    db, queue = far
    gate, returned = asyncio.Event(), asyncio.Event()

    async def agent(ctx: Context, given: Any) -> Any:
        await gate.wait()
        returned.set()
        return "done"

    long = with_recovery(fragile.settings, lease_s=15.0)
    async with working(long, db, queue, {"it": agent}):
        run_id = await submit_one(db, queue, "it")
        await running(db, run_id)
        await in_thread(fragile.postgres.kill)
        gate.set()
        await returned.wait()
        await in_thread(fragile.postgres.start)
        assert (await ended(db, run_id))["result"] == "done"
        assert await ledger(db, run_id) == [(1, "succeeded", True)]


async def test_claims_wait_for_postgres(fragile: Fragile, far: tuple[Database, Queue]) -> None:
    """An entry that was taken while Postgres was away is claimed when it is back."""
    db, queue = far
    ids = await submit(db, queue, *(new_run(agent="it") for _ in range(3)))

    async def agent(ctx: Context, given: Any) -> int:
        return ctx.run.claim_no

    async with working(fragile.settings, db, queue, {"it": agent}, queues={"runs": 1}) as worker:
        await ended(db, ids[2])
        await in_thread(fragile.postgres.stop)
        late = new_run(agent="it")
        await queue.push("runs", [entry(late.run_id)])
        await eventually(lambda: ("runs", f"1.{late.run_id}") in worker.handback.known)
        await in_thread(fragile.postgres.start)
        await eventually(lambda: not worker.handback.known)  # nobody knows that run: dropped
        assert (await ended(db, await submit_one(db, queue, "it")))["result"] == 1


def entry(run_id: str) -> Any:
    return Entry(1, run_id)


async def test_a_restart_of_redis_is_ridden_out(
    fragile: Fragile, far: tuple[Database, Queue]
) -> None:
    """Emits are given up, results are kept, entries are handed back when it answers again."""
    db, queue = far
    gate = Gate()
    async with working(fragile.settings, db, queue, {"it": gate}):
        run_id = await submit_one(db, queue, "it", input=7)
        await running(db, run_id)
        await in_thread(fragile.valkey.stop)
        gate.open.set()
        found = await ended(db, run_id)
        assert (found["status"], found["result"]) == ("succeeded", [7, 1])
        late = new_run(agent="it")
        pushing = asyncio.create_task(submit(db, queue, late))
        await in_thread(fragile.valkey.start)
        await pushing
        assert (await ended(db, late.run_id))["status"] == "succeeded"
        await eventually(lambda: empty(queue))
    assert [kind for _, kind, _ in await events.read(queue, late.run_id)] == ["said"]


async def test_both_restart_under_a_worker_process(
    workers: Parts, fragile: Fragile, far: tuple[Database, Queue], tmp_path: Path
) -> None:
    """It neither exits nor loses what it has; /readyz tells which of them is away, /livez not."""
    db, queue = far
    worker = workers("worker", **{**fragile.environment, "RC_LEASE_SECONDS": "0.6"})
    workers("janitor", **{**fragile.environment, "RC_LEASE_SECONDS": "0.6"})
    long = await submit_one(db, queue, "sleep", input=3)
    await running(db, long)
    fragile.valkey.stop()
    await eventually(lambda: "redis" in (worker.complaint() or ""))
    assert "Postgres" not in (worker.complaint() or "")
    fragile.valkey.start()
    await eventually(worker.ready)
    fragile.postgres.kill()
    await eventually(lambda: "Postgres" in (worker.complaint() or ""))
    assert "redis" not in (worker.complaint() or "")
    assert live(worker)
    fragile.postgres.start()
    await eventually(worker.ready)
    short = await submit_one(db, queue, "sleep", input=0)
    found = await ended(db, short), await ended(db, long)
    assert [run["status"] for run in found] == ["succeeded", "succeeded"]
    assert [run["result"]["pid"] for run in found] == [worker.pid, worker.pid]
    await eventually(lambda: empty(queue))


def live(part: Part) -> bool:
    with urlopen(f"http://127.0.0.1:{part.ports['health']}/livez", timeout=5) as answer:
        return int(answer.status) == 200


# Processes


async def test_one_that_was_stopped_past_its_lease_is_too_late(
    workers: Parts, db: Database, queue: Queue, tmp_path: Path
) -> None:
    """SIGSTOP, the run is executed elsewhere, SIGCONT: the late result is dropped and counted. It
    was stopped for longer than RC_BLOCKED_SECONDS, and nobody takes that for a blocked loop."""
    workers("janitor")
    first = workers("worker", RC_WORKER_QUEUES="runs=1", RC_BLOCKED_SECONDS="1.5")
    run_id = await submit_one(db, queue, "sleep", input=0.4)
    await eventually((tmp_path / f"began-{run_id}").exists)
    first.child.send(signal.SIGSTOP)
    second = workers("worker", RC_WORKER_QUEUES="runs=1")
    found = await ended(db, run_id)
    assert found["result"] == {"claim_no": 2, "pid": second.pid}
    first.child.send(signal.SIGCONT)
    await eventually(lambda: metric_of(first, "researchcopilot_runs_finished_total", "stale"))
    assert await ledger(db, run_id) == [(1, "lost", False), (2, "succeeded", True)]
    assert (await row(db, run_id))["finished_at"] == found["finished_at"]
    messages = await db.rows(b"SELECT role FROM messages ORDER BY message_id")
    assert messages == [("user",), ("assistant",)]
    assert (tmp_path / f"began-{run_id}").read_text().split() == [str(first.pid), str(second.pid)]
    # It goes on as a worker like any other.
    second.kill()
    late = await submit_one(db, queue, "sleep", input=0)
    assert (await ended(db, late))["result"]["pid"] == first.pid
    await eventually(lambda: empty(queue))


def metric_of(part: Part, name: str, *words: str) -> float:
    """The sum of a counter of another process over the series that have these label values."""
    with urlopen(f"http://127.0.0.1:{part.ports['health']}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith(name + "{") and all(f'"{word}"' in line for word in words)
    )


async def test_a_loop_that_stays_blocked_ends_the_process_and_the_run_goes_elsewhere(
    workers: Parts, db: Database, queue: Queue
) -> None:
    """Exit code 70, a log that says what to do and shows the stack; a neighbour is not lost."""
    workers("janitor")
    first = workers("worker", RC_WORKER_QUEUES="runs=2", RC_BLOCKED_SECONDS="1.2")
    blocker, neighbour = await submit(
        db, queue, new_run(agent="block_once", input=60), new_run(agent="sleep", input=0.1)
    )
    await eventually(lambda: not first.alive)
    assert first.child.exit_code == 70
    words = first.child.tail(60)
    for word in ("RC_BLOCKED_SECONDS=1.2", "plain def", "agents_for_tests.py", "in block_once"):
        assert word in words
    second = workers("worker", RC_WORKER_QUEUES="runs=2")
    found = await ended(db, blocker)
    assert found["result"] == {"claim_no": 2, "pid": second.pid}
    assert (found["losses"], found["attempts"]) == (1, 1)
    assert (await ended(db, neighbour))["status"] == "succeeded"


async def test_a_loop_that_is_blocked_for_a_while_keeps_everything(
    workers: Parts, db: Database, queue: Queue
) -> None:
    """For more than its lease, for less than RC_BLOCKED_SECONDS: told in the log, and no more."""
    quick = {"RC_LEASE_SECONDS": "0.6", "RC_SWEEP_SECONDS": "0.1"}
    workers("janitor", **quick)
    worker = workers("worker", **quick, RC_BLOCKED_SECONDS="30")
    run_id = await submit_one(db, queue, "block", input=1.6)
    found = await ended(db, run_id)
    assert (found["status"], found["result"]) == ("succeeded", {"claim_no": 1})
    assert worker.alive


async def test_agents_that_call_exit_end_their_runs_and_not_the_worker(
    workers: Parts, db: Database, queue: Queue
) -> None:
    """In an async agent, in a task that it starts, in a thread, and in a step of a thread."""
    worker = workers("worker")
    agents = ["exit_async", "exit_in_task", "exit_sync", "exit_in_step"]
    slow = new_run(agent="sleep", input=0.5)
    runs = [new_run(agent=agent, input=3, max_attempts=1) for agent in agents]
    await submit(db, queue, slow, *runs)
    for run in runs:
        found = await ended(db, run.run_id)
        assert (found["status"], found["error"]["type"]) == ("failed", "agent_exited"), run.agent
        assert "sys.exit(3)" in found["error"]["message"]
        assert "agents_for_tests.py" in found["error"]["trace"]
    assert (await ended(db, slow.run_id))["result"]["pid"] == worker.pid


async def test_kill_9_costs_a_lease_and_nothing_else(
    workers: Parts, db: Database, queue: Queue, tmp_path: Path
) -> None:
    """What it executed goes back to the queue, refunded, and is counted as a loss."""
    workers("janitor")
    first = workers("worker", RC_WORKER_QUEUES="runs=3")
    ids = await submit(db, queue, *(new_run(agent="sleep", input=30) for _ in range(3)))
    for run_id in ids:
        await eventually((tmp_path / f"began-{run_id}").exists)
    first.kill()
    waits = [{"losses": 1, "attempts": 0, "status": "queued", "claim_no": 1}] * 3

    async def taken_back() -> bool:
        found = [await row(db, run_id) for run_id in ids]
        return [{name: run[name] for name in waits[0]} for run in found] == waits

    await eventually(taken_back)
    for run_id in ids:
        assert await ledger(db, run_id) == [(1, "lost", False)]
    await eventually(lambda: all_wait(queue, 3))


async def all_wait(queue: Queue, n: int) -> bool:
    """None is in hands of the dead any more."""
    depths = await queue.depths("runs")
    return depths.waiting >= n and not depths.processing


async def test_every_line_of_a_workers_log_names_it(
    workers: Parts, fragile: Fragile, far: tuple[Database, Queue]
) -> None:
    """Also those of its renewal thread."""
    worker = workers("worker", **{**fragile.environment, "RC_LOG_FORMAT": "json"})
    fragile.postgres.stop()
    await eventually(lambda: "leases are not renewed" in worker.child.tail())
    lines = [json.loads(line) for line in worker.child.tail(200).splitlines()]
    after = lines[next(n for n, line in enumerate(lines) if line["message"].startswith("ready")) :]
    assert any(line["message"].startswith("leases are not") for line in after)
    assert {line["part"] for line in lines} == {"worker"}
    assert len({line.get("worker_id") for line in after}) == 1
