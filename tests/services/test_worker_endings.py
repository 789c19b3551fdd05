"""Agents that do not return: at their time-out, at the run's deadline, when they are told to stop.
A run ends without them, its slot is free again, and the trace shows where they were."""

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support import (
    ended,
    metric,
    returns,
    run_agent,
    submit_one,
    with_worker,
    working,
)

from researchcopilot.agents.contract import Context, SyncContext
from researchcopilot.core.settings import Settings
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.worker import execute

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def little_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "GRACE_S", 0.1)


@pytest.fixture
def quick(settings: Settings) -> Settings:
    return with_worker(settings, run_timeout_s=0.2, retry_base_s=0.001)


# When it does not return


async def test_one_that_never_returns_is_ended_and_the_trace_shows_where_it_was(
    quick: Settings, db: Database, queue: Queue
) -> None:
    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    async def agent(ctx: Context, given: Any) -> Any:
        await waits_for_ever()

    found = await run_agent(quick, db, queue, agent, max_attempts=1)
    assert found["error"]["type"] == "timed_out"
    for word in ("0.2 s", "RC_RUN_TIMEOUT_SECONDS"):
        assert word in found["error"]["message"]
    assert "in waits_for_ever" in found["error"]["trace"]


async def test_the_runs_own_time_out_goes_before_the_workers(
    settings: Settings, db: Database, queue: Queue
) -> None:
    async def agent(ctx: Context, given: Any) -> Any:
        await asyncio.sleep(60)

    found = await run_agent(settings, db, queue, agent, max_attempts=1, timeout_s=0.1)
    assert "0.1 s" in found["error"]["message"]
    assert "timeout_s" in found["error"]["message"]


async def test_a_deadline_ends_a_run_that_is_running(
    settings: Settings, db: Database, queue: Queue
) -> None:
    async def agent(ctx: Context, given: Any) -> Any:
        await asyncio.sleep(60)

    async with working(settings, db, queue, {"it": agent}):
        [(soon,)] = await db.rows(b"SELECT clock_timestamp() + interval '0.4 seconds'")
        run_id = await submit_one(db, queue, "it", deadline=soon)
        found = await ended(db, run_id)
    assert (found["status"], found["attempts"]) == ("failed", 1)
    assert found["error"]["type"] == "deadline"
    assert "deadline" in found["error"]["message"]
    assert (found["finished_at"] - soon).total_seconds() < 5


async def test_one_that_swallows_its_cancellation_ends_without_it(
    quick: Settings, db: Database, queue: Queue
) -> None:
    async def agent(ctx: Context, given: Any) -> Any:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await asyncio.sleep(60)

    before = metric("researchcopilot_agents_abandoned_total")
    async with working(quick, db, queue, {"it": agent, "next": returns(1)}, queues={"runs": 1}):
        run_id = await submit_one(db, queue, "it", max_attempts=1)
        found = await ended(db, run_id)
        assert found["error"]["type"] == "timed_out"
        assert metric("researchcopilot_agents_abandoned_total") == before + 1
        # The only slot is free again.
        assert (await ended(db, await submit_one(db, queue, "next")))["status"] == "succeeded"


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Closed until the test has ended: what a stuck thread waits for."""
    event = threading.Event()
    yield event
    event.set()


async def test_a_thread_that_never_returns_costs_no_more_than_itself(
    quick: Settings, db: Database, queue: Queue, gate: threading.Event
) -> None:
    def waits_in_thread() -> None:
        gate.wait(60)

    def agent(ctx: SyncContext, given: Any) -> Any:
        waits_in_thread()

    before = metric("researchcopilot_agents_abandoned_total")
    async with working(quick, db, queue, {"it": agent, "next": returns(1)}, queues={"runs": 1}):
        found = await ended(db, await submit_one(db, queue, "it", max_attempts=1))
        assert found["error"]["type"] == "timed_out"
        assert "in waits_in_thread" in found["error"]["trace"]
        assert metric("researchcopilot_agents_abandoned_total") == before + 1
        assert (await ended(db, await submit_one(db, queue, "next")))["status"] == "succeeded"


async def test_what_it_returns_when_told_to_stop_still_counts(
    quick: Settings, db: Database, queue: Queue
) -> None:
    async def agent(ctx: Context, given: Any) -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "so far"

    found = await run_agent(quick, db, queue, agent, max_attempts=1)
    assert (found["status"], found["result"]) == ("succeeded", "so far")


async def test_a_thread_that_looks_at_cancelled_can_still_return(
    quick: Settings, db: Database, queue: Queue
) -> None:
    def agent(ctx: SyncContext, given: Any) -> Any:
        while not ctx.cancelled:
            time.sleep(0.005)
        return "so far"

    found = await run_agent(quick, db, queue, agent, max_attempts=1)
    assert (found["status"], found["result"]) == ("succeeded", "so far")


async def test_a_sync_agent_runs_in_a_thread_of_its_own(
    quick: Settings, db: Database, queue: Queue
) -> None:
    def agent(ctx: SyncContext, given: Any) -> Any:
        return [threading.current_thread().name, threading.current_thread().daemon]

    found = await run_agent(quick, db, queue, agent)
    assert found["result"] == ["agent-it", True]
    assert threading.current_thread().name != "agent-it" and "pytest" in sys.modules
