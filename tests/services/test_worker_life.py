"""The life of a run inside a worker: registered, taken, claimed by verdict, executed, renewed,
finished, acknowledged. Real servers; the worker lives in the test's own process."""

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Any

import psycopg
import pytest
from tests.support import (
    Gate,
    delayed,
    echo,
    empty,
    ended,
    eventually,
    in_no_hands,
    ledger,
    metric,
    new_run,
    prompt,
    row,
    running,
    submit,
    submit_one,
    waiting,
    waits_in,
    with_recovery,
    working,
)

from researchcopilot.agents.contract import Context
from researchcopilot.core import settings as core_settings
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import AgentInfo, Outcome, WorkerInfo
from researchcopilot.core.settings import Settings
from researchcopilot.storage import moves, workers
from researchcopilot.storage.db import Database
from researchcopilot.storage.push import Pusher
from researchcopilot.storage.queue import Queue
from researchcopilot.worker.finish import Finisher
from researchcopilot.worker.handback import Handback
from researchcopilot.worker.hands import Hand

pytestmark = pytest.mark.anyio


# Registration


async def test_a_worker_is_registered_before_it_takes(
    settings: Settings, db: Database, queue: Queue
) -> None:
    run_id = await submit_one(db, queue)
    with psycopg.connect(settings.database.url) as blocker:
        blocker.execute("LOCK TABLE workers IN ACCESS EXCLUSIVE MODE")
        async with entered(settings, db, queue) as worker:
            await eventually(lambda: waits_in(db, "INSERT INTO workers"))
            await asyncio.wait((worker,), timeout=0.3)
            assert await waiting(queue, 1) and not worker.done()
            blocker.rollback()
            await ended(db, run_id)
    assert await db.rows(b"SELECT queues, agents, stopped_at IS NULL FROM workers") == [
        ({"runs": 4}, ["echo"], False)
    ]


class entered:
    """`working`, but without waiting until it is registered."""

    def __init__(self, settings: Settings, db: Database, queue: Queue) -> None:
        self._worker = working(settings, db, queue, {"echo": echo})

    async def __aenter__(self) -> asyncio.Task[Any]:
        self._task = asyncio.ensure_future(self._worker.__aenter__())
        return self._task

    async def __aexit__(self, *error: Any) -> None:
        await self._task
        await self._worker.__aexit__(None, None, None)


async def test_a_worker_is_counted_before_it_takes(
    settings: Settings, db: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in the hands of a worker that is not in the ZSET is missing in the depths."""
    run_id = await submit_one(db, queue)
    beat, gate = queue.beat, asyncio.Event()

    async def late(worker_id: str) -> None:
        await gate.wait()
        await beat(worker_id)

    monkeypatch.setattr(queue, "beat", late)
    async with working(settings, db, queue, {"echo": echo}) as worker:
        await asyncio.wait((asyncio.ensure_future(gate.wait()),), timeout=0.3)
        assert await waiting(queue, 1)
        gate.set()
        await ended(db, run_id)
        with prompt(settings) as client:
            assert client.zscore("workers", worker.info.worker_id)


async def test_workers_that_start_at_once_do_not_lock_each_other_out(db: Database) -> None:
    """They write the same agents, each in an order of its own."""
    names = [f"agent-{n}" for n in range(30)]

    def info(number: int) -> WorkerInfo:
        mixed = names[number:] + names[:number]
        agents = tuple(AgentInfo(name, str(number), "runs", "") for name in mixed)
        return WorkerInfo(new_id(), {"runs": 1}, agents, "host", 1, "0")

    await asyncio.gather(*(workers.register(db, info(number)) for number in range(24)))
    assert len(await workers.known_agents(db)) == 30
    assert await db.rows(b"SELECT count(*) FROM workers") == [(24,)]


async def test_a_worker_whose_row_is_gone_registers_again(
    settings: Settings, db: Database, queue: Queue
) -> None:
    quick = with_recovery(settings, lease_s=0.15)
    async with working(quick, db, queue, {"echo": echo}) as worker:
        await db.execute(b"DELETE FROM workers")
        found = await eventually(lambda: db.rows(b"SELECT worker_id FROM workers"))
        assert found == [(worker.info.worker_id,)]


async def test_a_worker_that_leaves_says_so(settings: Settings, db: Database, queue: Queue) -> None:
    async with working(settings, db, queue, {"echo": echo}) as worker:
        with prompt(settings) as client:
            await eventually(lambda: client.zscore("workers", worker.info.worker_id))
    assert await db.rows(b"SELECT stopped_at IS NOT NULL FROM workers") == [(True,)]
    with prompt(settings) as client:
        assert client.zscore("workers", worker.info.worker_id) is None


# Renewal


async def test_the_lease_is_kept_while_an_agent_blocks_the_loop(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """For three leases; the janitor reclaims meanwhile, from a thread of its own."""
    quick = with_recovery(settings, lease_s=0.6)
    left: list[float] = []

    async def agent(ctx: Context, given: Any) -> Any:
        with psycopg.connect(settings.database.url, autocommit=True) as connection:
            end = time.monotonic() + 1.8
            while time.monotonic() < end:
                found = connection.execute(
                    "SELECT extract(epoch FROM lease_until - clock_timestamp())::float8 FROM runs"
                ).fetchone()
                assert found is not None
                left.append(found[0])
                connection.execute("SELECT reclaim_2(10, 3)")

    async with working(quick, db, queue, {"it": agent}):
        run_id = await submit_one(db, queue, "it")
        assert (await ended(db, run_id))["status"] == "succeeded"
    assert min(left) > 0 and len(left) > 10
    assert await ledger(db, run_id) == [(1, "succeeded", True)]


async def test_a_run_that_was_taken_back_is_stopped_and_dropped(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """The next renewal says so; the agent is cancelled, nothing of it is kept."""
    quick = with_recovery(settings, lease_s=0.6)
    stopped: list[str] = []

    async def agent(ctx: Context, given: Any) -> Any:
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            stopped.append(str(ctx.cancelled))
            raise

    stale = {"queue": "runs", "agent": "it", "outcome": "stale"}
    before = metric("researchcopilot_runs_finished_total", **stale)
    async with working(quick, db, queue, {"it": agent}):
        run_id = await submit_one(db, queue, "it", session_id=None, serial=False)
        await running(db, run_id)
        other = await taken_over(db, run_id)
        await eventually(lambda: stopped == ["True"])
        await eventually(lambda: metric("researchcopilot_runs_finished_total", **stale) > before)
        found = await row(db, run_id)
    assert (found["status"], found["worker_id"], found["claim_no"]) == ("running", other, 2)


async def taken_over(db: Database, run_id: str) -> str:
    """Reclaimed, and claimed by somebody else."""
    other = new_id()
    while True:
        await db.execute(b"UPDATE runs SET lease_until = clock_timestamp() WHERE claim_no = 1")
        if (await moves.reclaim(db, limit=10, max_losses=3)).verdicts:
            break
    [verdict] = await moves.claim(db, [run_id], worker_id=other, claim_id=new_id(), lease_s=60)
    assert verdict.verdict == "claimed"
    return other


async def test_a_result_that_comes_after_the_run_was_taken_over_is_stale(
    settings: Settings, db: Database, queue: Queue
) -> None:
    gate = Gate()
    stale = {"queue": "runs", "agent": "it", "outcome": "stale"}
    before = metric("researchcopilot_runs_finished_total", **stale)
    slow = with_recovery(settings, lease_s=60.0)  # the next renewal is far away
    async with working(slow, db, queue, {"it": gate}):
        run_id = await submit_one(db, queue, "it")
        await running(db, run_id)
        await taken_over(db, run_id)
        gate.open.set()
        await eventually(lambda: metric("researchcopilot_runs_finished_total", **stale) > before)
        await eventually(lambda: in_no_hands(queue))
        found = await row(db, run_id)
    assert (found["status"], found["result"], found["claim_no"]) == ("running", None, 2)
    assert await db.rows(b"SELECT role FROM messages") == [("user",)]


# Finish and ack


async def test_a_finished_run_leaves_the_hands_and_stands_in_done(
    settings: Settings, db: Database, environment: Mapping[str, str]
) -> None:
    shown = core_settings.load({**environment, "RC_REDIS_DONE_KEPT": "2"})
    queue = Queue(shown.redis)
    ids = await submit(db, queue, *(new_run() for _ in range(3)))
    async with working(shown, db, queue, {"echo": echo}, queues={"runs": 1}):
        for run_id in ids:
            await ended(db, run_id)
        await eventually(lambda: empty(queue))
    with prompt(settings) as client:
        assert client.lrange("queue:runs:done", 0, -1) == [f"1.{ids[2]}", f"1.{ids[1]}"]
    await queue.close()


async def test_an_answer_that_was_lost_after_the_commit_is_not_a_second_finish(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """A retry that is sent twice: its entry still goes where the first sending put the run."""
    async with working(settings, db, queue, {}) as worker:
        [run_id] = await submit(db, queue, new_run(queue="other"))
        [verdict] = await moves.claim(
            db, [run_id], worker_id=worker.info.worker_id, claim_id=new_id(), lease_s=60
        )
        assert verdict.claim is not None
        over = asyncio.get_running_loop().create_future()
        hand = Hand(verdict.claim, f"1.{run_id}", 0.0, over)
        error = {"type": "E", "message": "e"}
        outcome = Outcome(run_id, 1, worker.info.worker_id, "retry", error=error, delay_s=40)
        await moves.finish(db, worker.info.worker_id, [outcome])
        with prompt(settings) as client:
            client.delete("queue:other", "queue:other:delayed")
            await worker.finisher.finish(hand, outcome)
            await eventually(lambda: client.zcard("queue:other:delayed") == 1)
    assert await ledger(db, run_id) == [(1, "retry", True)]


async def test_two_claims_of_one_run_in_one_group_each_have_their_own_verdict(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """A worker that was stopped and goes on can hold the claim it lost and the one it has."""
    [run_id] = await submit(db, queue, new_run(queue="other"))
    worker_id = new_id()
    hands = []
    for _ in range(2):
        [verdict] = await moves.claim(
            db, [run_id], worker_id=worker_id, claim_id=new_id(), lease_s=0
        )
        assert verdict.claim is not None
        over = asyncio.get_running_loop().create_future()
        hands.append(Hand(verdict.claim, f"1.{run_id}", 0.0, over))
        if len(hands) == 1:
            await moves.reclaim(db, limit=10, max_losses=3)
    handback = Handback(queue, worker_id)
    finisher = Finisher(db, worker_id, handback, Pusher(queue))
    labels = {"queue": "other", "agent": "echo"}

    def counted(outcome: str) -> float:
        return metric("researchcopilot_runs_finished_total", **labels, outcome=outcome)

    before = counted("stale"), counted("succeeded")
    await asyncio.gather(
        *(
            finisher.finish(
                hand, Outcome(run_id, hand.claim.claim_no, worker_id, "succeeded", result="1")
            )
            for hand in hands
        )
    )
    assert (counted("stale"), counted("succeeded")) == (before[0] + 1, before[1] + 1)
    await handback.close()


async def test_a_result_that_postgres_refuses_fails_its_run_and_no_other(
    settings: Settings, db: Database, queue: Queue
) -> None:
    await db.execute(b"ALTER TABLE runs ADD CHECK (result <> '\"poison\"')")
    inputs = ["a", "poison", "b", "c"]
    ids = await submit(db, queue, *(new_run(input=text) for text in inputs))
    async with working(settings, db, queue, {"echo": echo}):
        found = [await ended(db, run_id) for run_id in ids]
    assert [run["status"] for run in found] == ["succeeded", "failed", "succeeded", "succeeded"]
    assert found[1]["error"]["type"] == "finish_refused"
    assert "log" in found[1]["error"]["message"]


# An agent that nobody here has


async def test_a_run_of_an_unknown_agent_waits_for_a_worker_that_has_it(
    settings: Settings, db: Database, queue: Queue
) -> None:
    async with working(settings, db, queue, {"echo": echo}):
        run_id = await submit_one(db, queue, "other")
        await eventually(lambda: delayed(queue))
        found = await row(db, run_id)
        assert (found["status"], found["claim_no"], found["attempts"]) == ("queued", 1, 0)
        [(wait,)] = await db.rows(
            b"SELECT extract(epoch FROM run_at - clock_timestamp())::float8 FROM runs"
        )
        assert 25 < wait <= 30
        assert await in_no_hands(queue)
    assert await ledger(db, run_id) == [(1, "release", True)]
    assert found["error"]["type"] == "no_agent"
    for word in ("'other'", "'runs'", "30 s", "echo"):
        assert word in found["error"]["message"]


def test_threads_of_this_room_have_ended() -> None:
    """No renewal thread outlives its worker."""
    left = [thread.name for thread in threading.enumerate() if thread.name == "renewal"]
    end = time.monotonic() + 5
    while left and time.monotonic() < end:
        left = [thread.name for thread in threading.enumerate() if thread.name == "renewal"]
    assert left == []
