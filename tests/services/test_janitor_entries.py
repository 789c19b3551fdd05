"""The janitor moves what dead workers hold in their Redis lists, by verdict; living ones it leaves
alone. It never moves a run by that: what it does wrong would only be a hint too many."""

import asyncio

import pytest
from tests.support import (
    claim,
    eventually,
    new_run,
    prompt,
    row,
    submit,
    with_recovery,
    working,
)

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import WorkerInfo
from researchcopilot.core.settings import Settings
from researchcopilot.janitor.entries import clear_dead
from researchcopilot.storage import moves, workers
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


async def registered(db: Database, queue: Queue, *queues: str) -> str:
    """A worker that lives: a row, and a place in the ZSET."""
    worker_id = new_id()
    slots = dict.fromkeys(queues or ("runs",), 1)
    await workers.register(db, WorkerInfo(worker_id, slots, (), "host", 1, "0"))
    await queue.beat(worker_id)
    return worker_id


async def silent(db: Database, worker_id: str, seconds: float) -> None:
    await db.execute(
        b"UPDATE workers SET seen_at = clock_timestamp() - make_interval(secs => %(s)s)"
        b" WHERE worker_id = %(w)s",
        {"s": seconds, "w": worker_id},
    )


def hold(settings: Settings, worker_id: str, *texts: str, queue: str = "runs") -> None:
    """These stand in its list, and nowhere else."""
    with prompt(settings) as client:
        client.delete(f"queue:{queue}", f"queue:{queue}:delayed")
        client.rpush(f"queue:{queue}:processing:{worker_id}", *texts)


async def test_a_probe_of_a_dead_worker_comes_after_its_entries(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """Taken before them it would say that they are lost, since they are older than it."""
    worker_id = await registered(db, queue)
    ids = await submit(db, queue, new_run(), new_run())
    entries = [f"1.{run_id}" for run_id in ids]
    hold(settings, worker_id, *entries, "probe.1000000")
    await workers.stopped(db, worker_id)
    await clear_dead(db, queue, settings.recovery)
    assert await queue.take("runs", new_id(), 10) == [*entries, "probe.1000000"]


async def test_each_entry_of_a_dead_worker_goes_where_its_row_says(
    settings: Settings, db: Database, queue: Queue
) -> None:
    worker_id = await registered(db, queue)
    first = new_run()
    waits = new_run(first.session_id)
    due, later, runs, over = new_run(), new_run(delay_s=50), new_run(), new_run()
    last = new_run()
    await submit(db, queue, first, waits, due, later, runs, over, last)
    await claim(db, [first.run_id, waits.run_id, runs.run_id], worker_id=new_id())
    assert (await row(db, waits.run_id))["parked"]
    await moves.cancel(db, 1, [over.run_id])
    odd = ["garbage", "", "1.not-a-run-at-all", f"1.{new_id()}", "1." + "z" * 36]
    entries = [f"1.{run.run_id}" for run in (first, waits, due, later, runs, over, last)]
    hold(settings, worker_id, *odd, *entries, "probe.1000")
    await queue.push("runs", [])
    with prompt(settings) as client:
        client.rpush("queue:runs", "1.stands-there")
    await silent(db, worker_id, 3.0)
    await clear_dead(db, queue, settings.recovery)
    with prompt(settings) as client:
        assert client.lrange("queue:runs", 0, -1) == [
            f"1.{due.run_id}", f"1.{last.run_id}", "probe.1000", "1.stands-there",
        ]  # fmt: skip
        [(entry, score)] = client.zrange("queue:runs:delayed", 0, -1, withscores=True)
        assert (entry, 45 < score - client.time()[0] <= 51) == (f"1.{later.run_id}", True)
        assert client.llen(f"queue:runs:processing:{worker_id}") == 0
        assert client.zscore("workers", worker_id) is None


async def test_dead_is_who_left_or_was_silent_for_two_leases(
    settings: Settings, db: Database, queue: Queue
) -> None:
    run = new_run()
    await submit(db, queue, run)
    quiet, left = await registered(db, queue), await registered(db, queue)
    lease = settings.recovery.lease_s
    for worker_id in (quiet, left):
        hold(settings, worker_id, f"1.{run.run_id}")
    await silent(db, quiet, 1.5 * lease)
    await workers.stopped(db, left)
    await clear_dead(db, queue, settings.recovery)
    with prompt(settings) as client:
        assert client.llen(f"queue:runs:processing:{quiet}") == 1
        assert client.llen(f"queue:runs:processing:{left}") == 0
        assert client.lrange("queue:runs", 0, -1) == [f"1.{run.run_id}"]
    await silent(db, quiet, 2.5 * lease)
    await clear_dead(db, queue, settings.recovery)
    with prompt(settings) as client:
        assert client.llen(f"queue:runs:processing:{quiet}") == 0


async def test_every_queue_that_it_served_is_looked_at(
    settings: Settings, db: Database, queue: Queue
) -> None:
    worker_id = await registered(db, queue, "runs", "system", "slow")
    run = new_run(queue="slow")
    await submit(db, queue, run)
    hold(settings, worker_id, f"1.{run.run_id}", queue="slow")
    await workers.stopped(db, worker_id)
    await clear_dead(db, queue, settings.recovery)
    with prompt(settings) as client:
        assert client.lrange("queue:slow", 0, -1) == [f"1.{run.run_id}"]


async def test_two_janitors_at_once_lose_nothing(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """They may push an entry twice, which the claim sorts out; none may be gone."""
    worker_id = await registered(db, queue)
    runs = [new_run() for _ in range(30)]
    later = [new_run(delay_s=50) for _ in range(10)]
    await submit(db, queue, *runs, *later)
    hold(settings, worker_id, *(f"1.{run.run_id}" for run in (*runs, *later)))
    await workers.stopped(db, worker_id)
    await asyncio.gather(*(clear_dead(db, queue, settings.recovery) for _ in range(4)))
    with prompt(settings) as client:
        assert set(client.lrange("queue:runs", 0, -1)) == {f"1.{run.run_id}" for run in runs}
        assert client.zcard("queue:runs:delayed") == 10
        assert client.llen(f"queue:runs:processing:{worker_id}") == 0


async def test_a_worker_that_was_only_stopped_does_not_execute_what_was_moved(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """Its entry went to somebody else, who has finished; it claims what it remembers: gone."""
    quick = with_recovery(settings, lease_s=0.6)
    calls: list[str] = []

    async def agent(ctx: object, given: object) -> None:
        calls.append("here")

    async with working(quick, db, queue, {"it": agent}) as worker:
        run = new_run(agent="it", delay_s=0.001)
        await submit(db, queue, run)
        await claim(db, [run.run_id], worker_id=new_id())
        hold(settings, worker.info.worker_id, f"1.{run.run_id}")
        with prompt(settings) as client:
            client.client_kill_filter(_type="normal", skipme=True)  # it looks into its list
            await eventually(
                lambda: client.llen(f"queue:runs:processing:{worker.info.worker_id}") == 0
            )
    assert calls == []
