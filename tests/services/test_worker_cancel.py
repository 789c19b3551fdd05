"""A run that was asked to stop ends: at once where a push reaches its worker, with the next renewal
where it does not, and within the lease whatever its agent makes of it."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support import (
    ended,
    eventually,
    ledger,
    metric,
    new_run,
    row,
    running,
    somebody_listens,
    submit,
    submit_one,
    with_recovery,
    with_worker,
    working,
)

from researchcopilot.agents.contract import Context, SyncContext
from researchcopilot.core.settings import Settings
from researchcopilot.storage import moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.push import Pusher
from researchcopilot.storage.queue import Queue
from researchcopilot.worker import execute

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def little_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "GRACE_S", 0.2)


@pytest.fixture
def slow_renewal(settings: Settings) -> Settings:
    """The first renewal would come after twenty seconds."""
    return with_recovery(settings, lease_s=60.0)


async def sleeps(ctx: Context, given: Any) -> Any:
    await asyncio.sleep(60)


async def ask(db: Database, queue: Queue, run_id: str) -> None:
    """Cancel it as the api does."""
    pusher = Pusher(queue)
    _, _, asked = await moves.cancel(db, 1, [run_id])
    pusher.tell(asked)
    await pusher.close()


async def listening(queue: Queue, worker_id: str) -> None:
    await eventually(lambda: somebody_listens(queue, worker_id))


async def cancelled(
    settings: Settings, db: Database, queue: Queue, agent: Callable[..., Any]
) -> dict[str, Any]:
    """One run of that agent, cancelled while it is running, to its end."""
    async with working(settings, db, queue, {"it": agent}) as worker:
        await listening(queue, worker.info.worker_id)
        run_id = await submit_one(db, queue, "it")
        await running(db, run_id)
        await ask(db, queue, run_id)
        found = await ended(db, run_id)
        await eventually(lambda: not len(worker.hands))
    assert (found["status"], found["result"], found["error"]) == ("cancelled", None, None)
    assert await ledger(db, run_id) == [(1, "cancelled", True)]
    return found


async def test_a_push_ends_it_at_once(slow_renewal: Settings, db: Database, queue: Queue) -> None:
    before = metric("researchcopilot_cancellations_told_total", by="push")
    found = await cancelled(slow_renewal, db, queue, sleeps)
    assert (found["finished_at"] - found["cancel_requested_at"]).total_seconds() < 2
    assert metric("researchcopilot_cancellations_told_total", by="push") == before + 1


async def test_whom_no_push_reaches_is_told_by_its_renewal(
    settings: Settings, db: Database, queue: Queue
) -> None:
    before = metric("researchcopilot_cancellations_told_total", by="renewal")
    async with working(settings, db, queue, {"it": sleeps}):
        run_id = await submit_one(db, queue, "it")
        await running(db, run_id)
        await moves.cancel(db, 1, [run_id])
        found = await ended(db, run_id)
    assert found["status"] == "cancelled"
    lasted = (found["finished_at"] - found["cancel_requested_at"]).total_seconds()
    assert lasted < settings.recovery.lease_s
    assert metric("researchcopilot_cancellations_told_total", by="renewal") == before + 1


async def test_a_lost_connection_is_listened_to_again(
    slow_renewal: Settings, db: Database, queue: Queue
) -> None:
    async with working(slow_renewal, db, queue, {"it": sleeps}) as worker:
        await listening(queue, worker.info.worker_id)
        run_id = await submit_one(db, queue, "it")
        await running(db, run_id)
        await queue.all([("CLIENT", "KILL", "TYPE", "pubsub")])
        await listening(queue, worker.info.worker_id)
        await ask(db, queue, run_id)
        assert (await ended(db, run_id, 3))["status"] == "cancelled"


async def test_a_push_before_the_answer_of_the_claim_is_kept(
    slow_renewal: Settings, db: Database, queue: Queue
) -> None:
    async with working(slow_renewal, db, queue, {"it": sleeps}) as worker:
        await listening(queue, worker.info.worker_id)
        run = new_run(agent="it")
        await queue.tell([(worker.info.worker_id, run.run_id)])
        await eventually(lambda: run.run_id in worker.told._early)
        await submit(db, queue, run)
        assert (await ended(db, run.run_id, 3))["status"] == "cancelled"


async def test_a_push_to_one_run_is_no_push_to_another(
    slow_renewal: Settings, db: Database, queue: Queue
) -> None:
    async with working(slow_renewal, db, queue, {"it": sleeps}) as worker:
        await listening(queue, worker.info.worker_id)
        one, other = await submit(db, queue, new_run(agent="it"), new_run(agent="it"))
        await running(db, one)
        await running(db, other)
        await ask(db, queue, one)
        await ended(db, one, 3)
        assert (await row(db, other))["status"] == "running"


async def test_a_draining_worker_listens_too(
    slow_renewal: Settings, db: Database, queue: Queue
) -> None:
    patient = with_worker(slow_renewal, drain_s=60.0)
    async with working(patient, db, queue, {"it": sleeps}) as worker:
        await listening(queue, worker.info.worker_id)
        run_id = await submit_one(db, queue, "it")
        await running(db, run_id)
        worker.stop()
        await ask(db, queue, run_id)
        assert (await ended(db, run_id, 3))["status"] == "cancelled"


# Whatever its agent makes of it


async def test_one_that_swallows_it_ends_within_the_lease(
    settings: Settings, db: Database, queue: Queue
) -> None:
    free = asyncio.Event()

    async def stubborn(ctx: Context, given: Any) -> Any:
        while not free.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await free.wait()

    found = await cancelled(settings, db, queue, stubborn)
    lasted = (found["finished_at"] - found["cancel_requested_at"]).total_seconds()
    assert lasted < settings.recovery.lease_s
    free.set()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Closed until the test has ended: what a stuck thread waits for."""
    event = threading.Event()
    yield event
    event.set()


async def test_a_thread_that_does_not_look_ends_within_the_lease(
    settings: Settings, db: Database, queue: Queue, gate: threading.Event
) -> None:
    def deaf(ctx: SyncContext, given: Any) -> Any:
        gate.wait(60)

    found = await cancelled(settings, db, queue, deaf)
    lasted = (found["finished_at"] - found["cancel_requested_at"]).total_seconds()
    assert lasted < settings.recovery.lease_s


async def late_success(ctx: Context, given: Any) -> Any:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    return "done, just in time"


async def late_nonsense(ctx: Context, given: Any) -> Any:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    return {1, 2}


async def fails_on_its_way_out(ctx: Context, given: Any) -> Any:
    try:
        await asyncio.sleep(60)
    finally:
        raise ValueError("while it cleaned up")


async def gives_up_at_last(ctx: Context, given: Any) -> Any:
    while not ctx.cancelled:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
    raise ValueError("stopped")


@pytest.mark.parametrize(
    "agent", [late_success, late_nonsense, fails_on_its_way_out, gives_up_at_last],
    ids=lambda agent: agent.__name__,
)  # fmt: skip
async def test_it_is_cancelled_whatever_it_says_then(
    slow_renewal: Settings, db: Database, queue: Queue, agent: Callable[..., Any]
) -> None:
    await cancelled(slow_renewal, db, queue, agent)
