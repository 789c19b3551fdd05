"""What the janitor reads before it pushes: which queues there are, what is due soon, where an entry
of a dead worker belongs, what was lost. (What it does with that: tests/services/test_janitor_*.)"""

import pytest
from tests.support import claim, new_run, submit

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import AgentInfo, WorkerInfo
from researchcopilot.storage import moves, recovery, workers
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


async def test_every_queue_is_known_that_has_work_or_is_served(db: Database, queue: Queue) -> None:
    agents = (AgentInfo("a", "1", "of-an-agent", ""),)
    worker = WorkerInfo(new_id(), {"served": 1, "runs": 2}, agents, "h", 1, "0")
    await workers.register(db, worker)
    waiting, parked = new_run(queue="has-work"), new_run(queue="parked-only")
    done = new_run(queue="done-only")
    first = new_run(parked.session_id, queue="running")
    await submit(db, queue, first, parked, waiting, done)
    await claim(db, [first.run_id, parked.run_id], worker_id=new_id())
    await moves.cancel(db, 1, [done.run_id])
    known = set(await recovery.queues(db))
    assert known == {"of-an-agent", "served", "runs", "has-work"}
    await db.execute(b"UPDATE workers SET seen_at = clock_timestamp() - interval '2 days'")
    assert set(await recovery.queues(db)) == {"of-an-agent", "has-work"}


async def test_an_entry_belongs_where_its_row_says(db: Database, queue: Queue) -> None:
    running, due, later, over = new_run(), new_run(), new_run(delay_s=50), new_run()
    parked = new_run(running.session_id)
    await submit(db, queue, running, parked, due, later, over)
    await claim(db, [running.run_id, parked.run_id], worker_id=new_id())
    await moves.cancel(db, 1, [over.run_id])
    ids = [run.run_id for run in (running, parked, due, later, over)]
    found = await recovery.judge(db, [*ids, new_id()])
    assert [found[run_id].verdict for run_id in ids] == ["drop", "drop", "head", "later", "drop"]
    assert 45 < found[later.run_id].wait_s <= 50
    assert len(found) == 5
    assert await recovery.judge(db, []) == {}


async def test_lost_pushes_are_those_older_than_the_probe_in_every_workspace(
    db: Database, queue: Queue
) -> None:
    """Oldest first, the order of one commit is kept; not what is parked, delayed, or hinted."""
    await db.execute(b"INSERT INTO workspaces (name) VALUES ('second')")
    running = new_run()
    parked = new_run(running.session_id)
    await submit(db, queue, running, parked, new_run(delay_s=60), new_run(queue="other"))
    await claim(db, [running.run_id, parked.run_id], worker_id=new_id())
    batch = [new_run() for _ in range(20)]
    second = new_run(workspace_id=2)
    await submit(db, queue, *batch, second)
    between = await recovery.database_time(db)
    young = new_run()
    await submit(db, queue, young)
    found = await recovery.lost_pushes(db, "runs", between)
    assert [entry.run_id for entry in found] == [run.run_id for run in (*batch, second)]
    assert found[-1].workspace_id == 2
    # They are hinted now: the same probe finds them no more, one after the hint does.
    assert await recovery.lost_pushes(db, "runs", between) == []
    after = await recovery.database_time(db)
    assert len(await recovery.lost_pushes(db, "runs", after, limit=5)) == 5
    assert len(await recovery.lost_pushes(db, "runs", after, limit=500)) == 17


async def test_what_is_on_its_way_to_the_head_is_not_lost(db: Database, queue: Queue) -> None:
    """Runs of a dead worker come back over some seconds; a probe passes in between."""
    [run_id] = await submit(db, queue, new_run())
    await claim(db, [run_id], worker_id=new_id(), lease_s=0.0)
    assert len((await moves.reclaim(db, limit=10, max_losses=3)).head) == 1
    after = await recovery.database_time(db)
    assert await recovery.lost_pushes(db, "runs", after, spread_s=60.0) == []
    [entry] = await recovery.lost_pushes(db, "runs", after + 60_000_000, spread_s=60.0)
    assert entry.run_id == run_id


async def test_due_soon_is_within_two_minutes(db: Database, queue: Queue) -> None:
    soon, far, now = new_run(delay_s=100), new_run(delay_s=150), new_run()
    await submit(db, queue, soon, far, now)
    [(entry, wait_s)] = await recovery.due_soon(db, "runs")
    assert (entry.run_id, entry.workspace_id) == (soon.run_id, 1)
    assert 95 < wait_s <= 100
    assert await recovery.due_soon(db, "other") == []


async def test_janitors_know_of_each_others_absence(db: Database) -> None:
    async def age(interval: str) -> None:
        await db.execute(
            b"UPDATE duties SET last_success = last_success - %(i)s::interval WHERE name = 'd'",
            {"i": interval},
        )

    assert await recovery.sweep_begins(db, "d", 5.0) is None
    assert await recovery.sweep_begins(db, "d", 5.0) is None
    await age("4 seconds")
    assert await recovery.sweep_begins(db, "d", 5.0) is None
    await age("6 seconds")
    first = await recovery.sweep_begins(db, "d", 5.0)
    second = await recovery.sweep_begins(db, "d", 5.0)
    assert first is not None and second is not None
    assert 0 <= first <= second < 2
    assert await recovery.sweep_begins(db, "another", 5.0) is None


async def test_dead_workers_are_those_that_left_or_are_silent(db: Database) -> None:
    def info(worker_id: str) -> WorkerInfo:
        return WorkerInfo(worker_id, {"runs": 1, "system": 1}, (), "h", 1, "0")

    lives, left, silent = new_id(), new_id(), new_id()
    for worker_id in (lives, left, silent):
        await workers.register(db, info(worker_id))
    await workers.stopped(db, left)
    await db.execute(
        b"UPDATE workers SET seen_at = clock_timestamp() - interval '31 seconds'"
        b" WHERE worker_id = %(w)s",
        {"w": silent},
    )
    dead = dict(await workers.dead_workers(db, stale_s=30.0))
    assert set(dead) == {left, silent}
    assert sorted(dead[silent]) == ["runs", "system"]
    # It was only slow: once it registers again it is as alive as any.
    await workers.register(db, info(left))
    assert set(dict(await workers.dead_workers(db, stale_s=30.0))) == {silent}
