"""The janitor's duties on rows: leases that ran out, deadlines that passed, rows of old workers."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.support import (
    claim,
    eventually,
    ledger,
    metric,
    new_run,
    prompt,
    row,
    submit,
    with_recovery,
    working,
)

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Outcome, WorkerInfo
from researchcopilot.core.settings import Settings
from researchcopilot.janitor import deadlines
from researchcopilot.janitor.deadlines import expire
from researchcopilot.janitor.leases import Leases
from researchcopilot.runtime.loop import Stop
from researchcopilot.storage import moves, workers
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.returning import Returning

pytestmark = pytest.mark.anyio


def janitor(db: Database, queue: Queue, settings: Settings) -> Leases:
    returning = Returning(queue, Stop(), settings.recovery.spread_s)
    return Leases(db, queue, settings.recovery, returning)


async def executing(
    db: Database, queue: Queue, n: int, lease_s: float = 0.0, worker_id: str | None = None
) -> list[str]:
    """So many runs in the hands of one worker, taken from the list."""
    ids = await submit(db, queue, *(new_run() for _ in range(n)))
    worker_id = worker_id or new_id()
    await queue.take("runs", worker_id, n)
    await claim(db, ids, worker_id=worker_id, lease_s=lease_s)
    return ids


def listed(settings: Settings) -> list[str]:
    with prompt(settings) as client:
        return [text.partition(".")[2] for text in client.lrange("queue:runs", 0, -1)]


async def statuses(db: Database, ids: Sequence[str]) -> list[str]:
    return [(await row(db, run_id))["status"] for run_id in ids]


async def test_runs_of_a_dead_worker_come_back_to_the_head_oldest_first(
    settings: Settings, db: Database, queue: Queue
) -> None:
    first = await executing(db, queue, 1)
    second = await executing(db, queue, 1)
    waiting = await submit(db, queue, new_run())
    await janitor(db, queue, settings).sweep()
    assert listed(settings) == [*first, *second, *waiting]
    for run_id in (*first, *second):
        found = await row(db, run_id)
        assert (found["status"], found["attempts"], found["losses"]) == ("queued", 0, 1)
        assert await ledger(db, run_id) == [(1, "lost", False)]


async def test_a_good_lease_is_left_alone(settings: Settings, db: Database, queue: Queue) -> None:
    ids = await executing(db, queue, 1, lease_s=60)
    await janitor(db, queue, settings).sweep()
    assert await statuses(db, ids) == ["running"]


async def was_away(db: Database) -> None:
    """Nobody has swept for a while: the janitor was down, or Postgres was."""
    await db.execute(
        b"INSERT INTO duties VALUES ('leases', clock_timestamp() - interval '1 minute')"
        b" ON CONFLICT (name) DO UPDATE SET last_success = excluded.last_success"
    )


async def test_after_it_was_away_it_waits_a_full_lease(
    settings: Settings, db: Database, queue: Queue
) -> None:
    quick = with_recovery(settings, lease_s=0.5, sweep_s=0.1)
    ids = await executing(db, queue, 1)
    await was_away(db)
    leases = janitor(db, queue, quick)
    started = asyncio.get_running_loop().time()
    await leases.sweep()
    assert await statuses(db, ids) == ["running"]

    async def swept() -> bool:
        await leases.sweep()
        return await statuses(db, ids) == ["queued"]

    await eventually(swept)
    assert asyncio.get_running_loop().time() - started >= 0.5


async def test_workers_that_live_renew_while_it_waits(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """Their leases ran out while Postgres was away; none of them is taken back."""
    quick = with_recovery(settings, lease_s=0.6, sweep_s=0.1)
    gate = asyncio.Event()

    async def agent(ctx: object, given: object) -> None:
        await gate.wait()

    async with working(quick, db, queue, {"it": agent}):
        [run_id] = await submit(db, queue, new_run(agent="it"))
        await eventually(lambda: has_status(db, run_id, "running"))
        await db.execute(b"UPDATE runs SET lease_until = clock_timestamp() - interval '9 seconds'")
        await was_away(db)
        await janitor(db, queue, quick).sweep()
        await eventually(lambda: renewed(db))
        await janitor(db, queue, quick).sweep()
        gate.set()
        await eventually(lambda: has_status(db, run_id, "succeeded"))
    assert await ledger(db, run_id) == [(1, "succeeded", True)]


async def has_status(db: Database, run_id: str, status: str) -> bool:
    return bool((await row(db, run_id))["status"] == status)


async def renewed(db: Database) -> bool:
    return bool(await db.rows(b"SELECT 1 FROM runs WHERE lease_until > clock_timestamp()"))


async def test_two_that_come_back_at_once_both_wait(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """The second sees the sweep of the first, a moment ago; it must not take that for presence."""
    ids = await executing(db, queue, 3)
    await was_away(db)
    first, second = (janitor(db, queue, settings) for _ in range(2))
    await first.sweep()
    await second.sweep()
    assert set(await statuses(db, ids)) == {"running"}
    await asyncio.gather(first.sweep(), second.sweep())
    assert set(await statuses(db, ids)) == {"running"}


async def test_two_at_once_count_one_loss(settings: Settings, db: Database, queue: Queue) -> None:
    ids = await executing(db, queue, 40)
    await asyncio.gather(*(janitor(db, queue, settings).sweep() for _ in range(4)))
    losses = await db.rows(b"SELECT DISTINCT losses, attempts, status FROM runs")
    assert losses == [(1, 0, "queued")]
    assert sorted(listed(settings)) == sorted(ids)


async def test_a_lost_push_of_a_reclaim_is_found_by_the_probe(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """The move has committed, Redis is away: the row is queued, and hinted, and in no list."""
    await executing(db, queue, 1)
    nobody = Queue(replace(settings.redis, url="redis://127.0.0.1:9/0"))
    with pytest.raises(Exception, match="Redis does not answer"):
        await janitor(db, nobody, settings).sweep()
    assert await db.rows(b"SELECT status, hinted_at IS NOT NULL FROM runs") == [("queued", True)]
    await nobody.close()


# Deadlines


async def test_past_its_deadline_a_run_fails_and_says_what_to_look_at(
    settings: Settings, db: Database, queue: Queue
) -> None:
    late = datetime.now(UTC) - timedelta(seconds=5)
    never = new_run(deadline=late, queue="slow")
    tried = new_run(deadline=datetime.now(UTC) + timedelta(seconds=60))
    await submit(db, queue, never, tried)
    await claim(db, [tried.run_id], worker_id=(worker := new_id()), lease_s=60)
    error = {"type": "E", "message": "e"}
    await moves.finish(db, worker, [Outcome(tried.run_id, 1, worker, "retry", error=error)])
    await db.execute(b"UPDATE runs SET deadline = clock_timestamp() - interval '1 second'")
    before = metric("researchcopilot_runs_expired_total", reason="never_started")
    await expire(db, queue)
    assert metric("researchcopilot_runs_expired_total", reason="never_started") == before + 1
    found = await row(db, never.run_id)
    assert (found["status"], found["error"]["type"]) == ("failed", "never_started")
    for word in ("worker", "slow", "free slots"):
        assert word in found["error"]["message"]
    found = await row(db, tried.run_id)
    assert (found["status"], found["error"]["type"]) == ("failed", "deadline")
    assert "ledger" in found["error"]["message"]


async def test_more_than_a_batch_expires_in_one_round_and_frees_its_sessions(
    settings: Settings, db: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "BATCH", 3)
    firsts = [new_run(deadline=datetime.now(UTC) + timedelta(seconds=60)) for _ in range(7)]
    seconds = [new_run(first.session_id) for first in firsts]
    await submit(db, queue, *firsts, *seconds)
    await claim(db, [run.run_id for run in seconds], worker_id=new_id(), lease_s=60)
    assert {status for status in await statuses(db, [r.run_id for r in seconds])} == {"queued"}
    with prompt(settings) as client:
        client.delete("queue:runs")
    await db.execute(
        b"UPDATE runs SET deadline = clock_timestamp() WHERE run_id = ANY (%(ids)s)",
        {"ids": [run.run_id for run in firsts]},
    )
    await expire(db, queue)
    assert set(await statuses(db, [run.run_id for run in firsts])) == {"failed"}
    # Those that were parked behind them are pushed.
    assert sorted(listed(settings)) == sorted(run.run_id for run in seconds)


# Workers


async def test_old_workers_are_forgotten_unless_they_hold_a_run(db: Database, queue: Queue) -> None:
    def info(worker_id: str) -> WorkerInfo:
        return WorkerInfo(worker_id, {"runs": 1}, (), "host", 1, "0")

    old, holding, young = new_id(), new_id(), new_id()
    for worker_id in (old, holding, young):
        await workers.register(db, info(worker_id))
    await executing(db, queue, 1, lease_s=60, worker_id=holding)
    await db.execute(
        b"UPDATE workers SET seen_at = clock_timestamp() - interval '2 days'"
        b" WHERE worker_id <> %(y)s",
        {"y": young},
    )
    assert await workers.prune_workers(db) == 1
    left = {row[0] for row in await db.rows(b"SELECT worker_id FROM workers")}
    assert left == {holding, young}
