"""What an agent is given besides steps: emits, messages, keys, deadlines and cancellations, the
same for async agents and for plain functions in their thread."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support import (
    ended,
    ledger,
    metric,
    new_run,
    row,
    running,
    status_is,
    submit,
    submit_one,
    with_worker,
    working,
)

from researchcopilot.agents.contract import Context, SyncContext
from researchcopilot.core.settings import Settings
from researchcopilot.storage import events, moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


@pytest.fixture
def quick(settings: Settings) -> Settings:
    return with_worker(settings, retry_base_s=0.001)


@pytest.fixture
async def mover(queue: Queue, anyio_backend: str) -> AsyncIterator[None]:
    """What a scheduler does: retried runs come back."""

    async def move() -> None:
        while True:
            await queue.due("runs")
            await asyncio.sleep(0.01)

    task = asyncio.create_task(move())
    yield
    task.cancel()


# Emits


async def test_emits_stand_in_order_and_an_old_claim_cannot_speak(
    quick: Settings, db: Database, queue: Queue, mover: None
) -> None:
    async def agent(ctx: Context, given: Any) -> Any:
        await ctx.emit("step", {"n": 1, "text": "a\x00"})
        await asyncio.gather(*(ctx.emit("more", {"n": n}) for n in (2, 3)))
        if ctx.run.claim_no == 1:
            raise ValueError("again")

    async with working(quick, db, queue, {"it": agent}):
        run_id = await submit_one(db, queue, "it")
        await ended(db, run_id)
    found = await events.read(queue, run_id)
    assert [(id_, kind) for id_, kind, _ in found] == [
        ("1-1", "step"), ("1-2", "more"), ("1-3", "more"),
        ("2-1", "step"), ("2-2", "more"), ("2-3", "more"),
    ]  # fmt: skip
    assert found[0][2] == '{"n":1,"text":"a\ufffd"}'
    await events.append(queue, [events.Event(run_id, 1, 4, "late", "{}")])
    assert await events.read(queue, run_id) == found


@pytest.mark.parametrize("data", [{"a": {1}}, {"a": float("nan")}, {"a": "x" * 70_000}])
async def test_an_emit_that_cannot_be_told_never_fails_its_run(
    quick: Settings, db: Database, queue: Queue, data: Any
) -> None:
    async def agent(ctx: Context, given: Any) -> Any:
        await ctx.emit("bad", data)
        await ctx.emit("good", {})
        return "fine"

    before = metric("researchcopilot_events_given_up_total")
    async with working(quick, db, queue, {"it": agent}):
        run_id = await submit_one(db, queue, "it", max_attempts=1)
        assert (await ended(db, run_id))["result"] == "fine"
    assert metric("researchcopilot_events_given_up_total") == before + 1
    # No hole in the numbers: a reader would look for what was lost.
    assert [id_ for id_, _, _ in await events.read(queue, run_id)] == ["1-1"]


# The rest of what it is given


async def test_messages_are_the_conversation_so_far(
    quick: Settings, db: Database, queue: Queue
) -> None:
    async def agent(ctx: Context, given: Any) -> Any:
        return [[message.role, message.payload["content"]] for message in await ctx.messages()]

    first = new_run(agent="it", input="one")
    second = new_run(first.session_id, agent="it", input="two")
    async with working(quick, db, queue, {"it": agent}):
        await submit(db, queue, first)
        await ended(db, first.run_id)
        await submit(db, queue, second)
        found = await ended(db, second.run_id)
    said = [["user", "one"]]
    assert found["result"] == [*said, ["assistant", said], ["user", "two"]]


async def test_a_run_without_a_session_has_no_messages(
    quick: Settings, db: Database, queue: Queue
) -> None:
    async def agent(ctx: Context, given: Any) -> Any:
        return [ctx.run.session_id, await ctx.messages()]

    run = replace(new_run(agent="it", serial=False), session_id=None)
    async with working(quick, db, queue, {"it": agent}):
        await submit(db, queue, run)
        assert (await ended(db, run.run_id))["result"] == [None, []]


async def test_the_idempotency_key_stays_and_the_claim_changes(
    quick: Settings, db: Database, queue: Queue, mover: None
) -> None:
    seen: list[tuple[str, int, int]] = []

    async def agent(ctx: Context, given: Any) -> Any:
        seen.append((ctx.idempotency_key, ctx.run.claim_no, ctx.run.attempts))
        if len(seen) == 1:
            raise ValueError("again")

    async with working(quick, db, queue, {"it": agent}):
        run_id = await submit_one(db, queue, "it")
        await ended(db, run_id)
    assert seen == [(run_id, 1, 1), (run_id, 2, 2)]


@pytest.mark.parametrize(("timeout_s", "deadline_s", "first"), [(5, 60, 5), (60, 5, 5)])
async def test_the_deadline_is_whichever_ends_it_first(
    quick: Settings, db: Database, queue: Queue, timeout_s: float, deadline_s: float, first: float
) -> None:
    async def agent(ctx: Context, given: Any) -> Any:
        assert ctx.deadline.tzinfo is not None
        return (ctx.deadline - datetime.now(UTC)).total_seconds()

    soon = datetime.now(UTC) + timedelta(seconds=deadline_s)
    async with working(quick, db, queue, {"it": agent}):
        run_id = await submit_one(db, queue, "it", timeout_s=timeout_s, deadline=soon)
        found = await ended(db, run_id)
    assert first - 2 < found["result"] <= first + 0.5


def waits(ctx: SyncContext, given: Any) -> Any:
    end = time.monotonic() + 20
    while not ctx.cancelled and time.monotonic() < end:
        time.sleep(0.005)
    return ctx.cancelled


async def sleeps(ctx: Context, given: Any) -> Any:
    await asyncio.sleep(20)


@pytest.mark.parametrize("agent", [sleeps, waits])
async def test_a_cancel_request_reaches_the_agent_with_the_next_renewal(
    quick: Settings, db: Database, queue: Queue, agent: Callable[..., Any]
) -> None:
    async with working(quick, db, queue, {"it": agent}):
        run_id = await submit_one(db, queue, "it")
        await running(db, run_id)
        await moves.cancel(db, 1, [run_id])
        found = await ended(db, run_id)
    assert (found["status"], found["result"]) == ("cancelled", None)
    assert await ledger(db, run_id) == [(1, "cancelled", True)]
    assert (found["finished_at"] - found["cancel_requested_at"]).total_seconds() < 5


async def test_a_sync_agent_has_the_same_from_its_thread(
    quick: Settings, db: Database, queue: Queue
) -> None:
    threads: list[int] = []

    def agent(ctx: SyncContext, given: Any) -> Any:
        def step() -> int:
            threads.append(threading.get_ident())
            return 7

        threads.append(threading.get_ident())
        ctx.emit("said", {"n": 1})
        return {
            "step": ctx.step("a", step),
            "messages": len(ctx.messages()),
            "key": ctx.idempotency_key,
            "cancelled": ctx.cancelled,
            "aware": ctx.deadline.tzinfo is not None,
        }

    async with working(quick, db, queue, {"it": agent}):
        run_id = await submit_one(db, queue, "it")
        found = await ended(db, run_id)
    assert found["result"] == {
        "step": 7, "messages": 1, "key": run_id, "cancelled": False, "aware": True,
    }  # fmt: skip
    assert [kind for _, kind, _ in await events.read(queue, run_id)] == ["said"]
    # The step ran where the agent runs: what it opened there (sqlite, a session) it may use there.
    assert len(set(threads)) == 1 and threading.get_ident() not in threads


@pytest.mark.parametrize(
    ("error", "kind"),
    [(OSError("away"), "OSError"), (StopIteration(1), "RuntimeError"),
     (SystemExit(3), "agent_exited"), (KeyboardInterrupt(), "agent_exited")],
)  # fmt: skip
async def test_what_a_step_of_a_sync_agent_raises_ends_its_run_alone(
    quick: Settings, db: Database, queue: Queue, error: BaseException, kind: str
) -> None:
    def fails() -> Any:
        raise error

    def agent(ctx: SyncContext, given: Any) -> Any:
        return ctx.step("a", fails)

    async with working(quick, db, queue, {"it": agent, "next": lambda ctx, given: 1}):
        found = await ended(db, await submit_one(db, queue, "it", max_attempts=1))
        assert found["error"]["type"] == kind
        assert (await ended(db, await submit_one(db, queue, "next")))["result"] == 1


async def test_a_sync_agent_reads_its_kept_steps(
    quick: Settings, db: Database, queue: Queue, mover: None
) -> None:
    calls: list[int] = []

    def agent(ctx: SyncContext, given: Any) -> Any:
        def step() -> int:
            calls.append(1)
            return len(calls)

        value = ctx.step("a", step)
        if ctx.run.claim_no == 1:
            raise ValueError("again")
        return value

    async with working(quick, db, queue, {"it": agent}):
        run_id = await submit_one(db, queue, "it")
        await status_is(db, run_id, "succeeded")
    assert (await row(db, run_id))["result"] == 1 and calls == [1]
