"""Threads of agents that nothing can stop: their runs end without them, a person is told where they
are, and a worker that has lost too many makes room for a new one."""

import asyncio
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.conftest import Parts
from tests.support import (
    ended,
    eventually,
    metric,
    new_run,
    row,
    running,
    submit,
    with_worker,
    working,
)

from researchcopilot.agents.contract import Context, SyncContext
from researchcopilot.core.settings import Settings
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.worker import execute
from researchcopilot.worker.lost import EXIT_LOST

pytestmark = pytest.mark.anyio
LOST = "researchcopilot_lost_threads"


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Closed until the test opens it, or has ended: what a stuck thread waits for."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def quick(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(execute, "GRACE_S", 0.05)
    return with_worker(settings, run_timeout_s=0.1, max_lost_threads=1)


async def test_each_is_counted_until_it_returns_and_its_stack_is_told(
    quick: Settings, db: Database, queue: Queue, gate: threading.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def waits_for_the_gate() -> None:
        gate.wait(60)

    def stuck(ctx: SyncContext, given: Any) -> Any:
        waits_for_the_gate()
        ctx.step("late", lambda: 1)

    before = metric(LOST)
    async with working(quick, db, queue, {"it": stuck}) as worker:
        [run_id] = await submit(db, queue, new_run(agent="it", max_attempts=1))
        assert (await ended(db, run_id))["error"]["type"] == "timed_out"
        assert metric(LOST) == before + 1
        assert "in waits_for_the_gate" in caplog.text
        assert not worker.stop.is_set
        gate.set()
        await eventually(lambda: metric(LOST) == before)
    # What it would have written then is fenced.
    assert await db.rows(b"SELECT name FROM steps") == []


async def test_work_that_an_async_agent_has_left_in_the_pool_is_counted_too(
    quick: Settings, db: Database, queue: Queue, gate: threading.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Cancelling ends the waiting and not the work: the pool is everybody's, and would be full of
    such work without a word. Red without worker/execute.py:
    `loop.call_later(GRACE_S, self._look_after, works)`
    """

    def waits_for_the_gate() -> None:
        gate.wait(60)

    async def stuck(ctx: Context, given: Any) -> Any:
        await asyncio.to_thread(waits_for_the_gate)

    async def quick_one(ctx: Context, given: Any) -> Any:
        return await asyncio.to_thread(lambda: "done")

    before = metric(LOST)
    agents = {"it": stuck, "quick": quick_one}
    async with working(quick, db, queue, agents) as worker:
        [run_id] = await submit(db, queue, new_run(agent="it", max_attempts=1))
        assert (await ended(db, run_id))["error"]["type"] == "timed_out"
        await eventually(lambda: metric(LOST) == before + 1)
        assert "in waits_for_the_gate" in caplog.text
        assert not worker.stop.is_set
        [other] = await submit(db, queue, new_run(agent="quick", max_attempts=1))
        assert (await ended(db, other))["result"] == "done"
        assert metric(LOST) == before + 1
        gate.set()
        await eventually(lambda: metric(LOST) == before)


async def test_lost_threads_of_the_pool_leave_as_many_for_others(
    quick: Settings, db: Database, queue: Queue, gate: threading.Event
) -> None:
    """With as many lost as may be, who waits for the pool still gets a thread. Red without what
    worker/pool.py adds to asyncio's size: `+ most_lost`
    """
    usual = min(32, (os.cpu_count() or 1) + 4)

    async def stuck(ctx: Context, given: Any) -> Any:
        await asyncio.to_thread(gate.wait, 60)

    async def quick_one(ctx: Context, given: Any) -> Any:
        return await asyncio.to_thread(lambda: "done")

    before = metric(LOST)
    patient = with_worker(quick, max_lost_threads=usual)
    agents = {"it": stuck, "quick": quick_one}
    async with working(patient, db, queue, agents, queues={"runs": usual}) as worker:
        await submit(db, queue, *(new_run(agent="it", max_attempts=1) for _ in range(usual)))
        await eventually(lambda: metric(LOST) == before + usual)
        assert not worker.stop.is_set
        [other] = await submit(db, queue, new_run(agent="quick", max_attempts=1, timeout_s=10))
        assert (await ended(db, other, 5))["result"] == "done"
        gate.set()
        await eventually(lambda: metric(LOST) == before)


async def test_one_too_many_drains_the_worker(
    quick: Settings, db: Database, queue: Queue, gate: threading.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """It takes no more, lets what it has end, and says with which code it goes."""
    free = asyncio.Event()

    def stuck(ctx: SyncContext, given: Any) -> Any:
        gate.wait(60)

    async def good(ctx: Any, given: Any) -> Any:
        await free.wait()
        return "whole"

    patient = with_worker(quick, drain_s=30.0)
    async with working(patient, db, queue, {"stuck": stuck, "good": good}) as worker:
        [beside] = await submit(db, queue, new_run(agent="good", timeout_s=60))
        await running(db, beside)
        await submit(db, queue, *(new_run(agent="stuck", max_attempts=1) for _ in range(2)))
        await eventually(lambda: worker.stop.is_set)
        assert worker.exit_code == EXIT_LOST
        assert "RC_MAX_LOST_THREADS" in caplog.text
        free.set()
        assert (await ended(db, beside))["result"] == "whole"


async def test_who_drains_for_another_reason_goes_with_code_0(
    quick: Settings, db: Database, queue: Queue, gate: threading.Event
) -> None:
    def stuck(ctx: SyncContext, given: Any) -> Any:
        gate.wait(60)

    hasty = with_worker(quick, drain_s=0.0, run_timeout_s=60.0)
    async with working(hasty, db, queue, {"it": stuck}) as worker:
        ids = await submit(db, queue, *(new_run(agent="it") for _ in range(3)))
        for run_id in ids:
            await running(db, run_id)
        worker.stop()
    assert worker.exit_code == 0
    assert [(await row(db, run_id))["status"] for run_id in ids] == ["queued"] * 3


async def test_the_process_exits_so_that_it_is_replaced(
    workers: Parts, db: Database, queue: Queue
) -> None:
    worker = workers(
        "worker", RC_MAX_LOST_THREADS="1", RC_RUN_TIMEOUT_SECONDS="0.1", RC_DRAIN_SECONDS="0.1"
    )
    runs = [new_run(agent="sleep_in_thread", input=60, max_attempts=1) for _ in range(2)]
    await submit(db, queue, *runs)
    await eventually(lambda: not worker.alive, 20)
    assert worker.child.wait(1) == EXIT_LOST
