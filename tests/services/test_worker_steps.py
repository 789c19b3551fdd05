"""ctx.step: what a run has done once is not done again by a later claim, and only the claim in
charge may keep anything."""

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.services import claimed
from tests.support import (
    ended,
    eventually,
    submit_one,
    with_worker,
    working,
)

from researchcopilot.agents.contract import Context, SyncContext
from researchcopilot.core.errors import LostClaim
from researchcopilot.core.settings import Settings
from researchcopilot.storage import events, moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.worker import execute
from researchcopilot.worker.context import WorkerContext
from researchcopilot.worker.hands import Ending, Hand

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


# Steps


async def test_a_step_is_kept_over_claims_and_runs_once(
    quick: Settings, db: Database, queue: Queue, mover: None
) -> None:
    calls: list[int] = []

    async def pay(ctx: Context) -> dict[str, Any]:
        calls.append(ctx.run.claim_no)
        return {"paid": (1, 2), "by": ctx.run.claim_no}

    async def agent(ctx: Context, given: Any) -> Any:
        first = await ctx.step("pay", lambda: pay(ctx))
        plain = await ctx.step("plain", lambda: 7)
        if ctx.run.claim_no < 3:
            raise ValueError("not yet")
        return [first, plain]

    async with working(quick, db, queue, {"it": agent}):
        found = await ended(db, await submit_one(db, queue, "it"))
    # What the first claim was given is what the others read: JSON, the tuple is a list.
    assert found["result"] == [{"paid": [1, 2], "by": 1}, 7]
    assert calls == [1]


async def test_the_first_value_of_a_step_wins(db: Database, queue: Queue, tmp_path: Path) -> None:
    """Two claims that both call it: the slower one is given what the faster one kept."""
    context = await claimed.new_context(db, queue, tmp_path)
    await context.step("other", lambda: 0)  # what was kept before has been read now
    await db.execute(
        b"INSERT INTO steps (run_id, name, claim_no, workspace_id, value)"
        b" VALUES (%(r)s, 'x', 1, 1, '\"first\"')",
        {"r": context.run.run_id},
    )
    assert await context.step("x", lambda: "second") == "first"


@pytest.mark.parametrize("blocking", [False, True])
async def test_one_name_twice_in_a_claim_is_an_error(
    quick: Settings, db: Database, queue: Queue, blocking: bool
) -> None:
    async def agent(ctx: Context, given: Any) -> Any:
        for _ in range(2):
            await ctx.step("again", lambda: 1)

    def sync(ctx: SyncContext, given: Any) -> Any:
        for _ in range(2):
            ctx.step("again", lambda: 1)

    async with working(quick, db, queue, {"it": sync if blocking else agent}):
        found = await ended(db, await submit_one(db, queue, "it", max_attempts=1))
    assert found["error"]["type"] == "duplicate_step"
    assert "'again'" in found["error"]["message"]


async def test_a_name_that_cannot_be_kept_as_it_is_is_refused(
    quick: Settings, db: Database, queue: Queue
) -> None:
    """Cut or cleaned, it would be found by another name, or not found by its own."""
    names = ["", "n" * 201, "a\x00b", "\ud800", None, 3]

    async def agent(ctx: Context, given: Any) -> Any:
        name: Any = names[given]
        return await ctx.step(name, lambda: 1)

    async with working(quick, db, queue, {"it": agent}):
        for number in range(len(names)):
            found = await ended(db, await submit_one(db, queue, "it", input=number))
            assert (found["error"]["type"], found["attempts"]) == ("permanent", 1)
            assert "name of a step" in found["error"]["message"]


@pytest.mark.parametrize(
    ("value", "words"), [({1}, ["'big'", "set"]), ("x" * 2_000_000, ["'big'", "1.9 MB", "1.0 MB"])]
)
async def test_a_value_that_cannot_be_kept_names_its_step(
    quick: Settings, db: Database, queue: Queue, value: Any, words: list[str]
) -> None:
    async def agent(ctx: Context, given: Any) -> Any:
        return await ctx.step("big", lambda: value)

    async with working(quick, db, queue, {"it": agent}):
        found = await ended(db, await submit_one(db, queue, "it"))
    assert found["error"]["type"] == "bad_result"
    for word in words:
        assert word in found["error"]["message"]


async def test_a_step_that_fails_is_not_kept(
    quick: Settings, db: Database, queue: Queue, mover: None
) -> None:
    def fails(ctx: Context) -> int:
        if ctx.run.claim_no == 1:
            raise OSError("away")
        return ctx.run.claim_no

    async def agent(ctx: Context, given: Any) -> Any:
        return await ctx.step("once", lambda: fails(ctx))

    async with working(quick, db, queue, {"it": agent}):
        assert (await ended(db, await submit_one(db, queue, "it")))["result"] == 2


async def test_a_claim_that_was_lost_keeps_nothing(
    db: Database, queue: Queue, tmp_path: Path
) -> None:
    context = await claimed.new_context(db, queue, tmp_path)
    await db.execute(b"UPDATE runs SET lease_until = clock_timestamp()")
    assert (await moves.reclaim(db, limit=10, max_losses=3)).verdicts
    with pytest.raises(LostClaim):
        await context.step("late", lambda: 1)
    # Another claim of the same run is no help either.
    await claimed.claim(db, context.run.run_id)
    with pytest.raises(LostClaim):
        await context.step("later", lambda: 1)
    assert await db.rows(b"SELECT name FROM steps") == []


def in_doubt(context: WorkerContext) -> Hand:
    """Its lease may have run out: the renewal was not heard of."""
    hand = context._hand
    hand.lease_until = time.monotonic() - 1
    return hand


async def test_while_the_lease_is_in_doubt_a_step_waits(
    db: Database, queue: Queue, tmp_path: Path
) -> None:
    context = await claimed.new_context(db, queue, tmp_path)
    hand = in_doubt(context)
    done = asyncio.Event()
    step = asyncio.create_task(context.step("a", lambda: done.set()))
    emit = asyncio.create_task(context.emit("b", {}))
    await done.wait()  # its function was called, its value is not kept yet
    settled, _ = await asyncio.wait((step, emit), timeout=0.1)
    assert not settled and await db.rows(b"SELECT name FROM steps") == []
    hand.renewed(math.inf)
    await asyncio.wait_for(asyncio.gather(step, emit), 5)
    assert await db.rows(b"SELECT name FROM steps") == [("a",)]


async def test_a_lease_in_doubt_that_is_lost_raises(
    db: Database, queue: Queue, tmp_path: Path
) -> None:
    context = await claimed.new_context(db, queue, tmp_path)
    hand = in_doubt(context)
    hand.end(Ending.TIMED_OUT)  # the first reason; that it is lost weighs more
    step = asyncio.create_task(context.step("a", lambda: 1))
    emit = asyncio.create_task(context.emit("b", {}))
    await asyncio.wait((step, emit), timeout=0.05)
    hand.end(Ending.LOST)
    for task in (step, emit):
        with pytest.raises(LostClaim):
            await asyncio.wait_for(task, 5)


async def test_an_abandoned_agent_is_told_that_its_run_is_over(
    settings: Settings, db: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went on after its time-out: what it writes later must neither count nor hang."""
    monkeypatch.setattr(execute, "GRACE_S", 0.1)
    told: list[str] = []
    over = threading.Event()

    def agent(ctx: SyncContext, given: Any) -> Any:
        over.wait(20)
        for call in (lambda: ctx.emit("late", {}), lambda: ctx.step("late", lambda: 1)):
            try:
                call()
            except LostClaim:
                told.append("lost")

    quick = with_worker(settings, run_timeout_s=0.05)
    async with working(quick, db, queue, {"it": agent}):
        run_id = await submit_one(db, queue, "it", max_attempts=1)
        await ended(db, run_id)
        over.set()
        await eventually(lambda: told == ["lost", "lost"])
    assert await db.rows(b"SELECT name FROM steps") == []
    assert await events.read(queue, run_id) == []
