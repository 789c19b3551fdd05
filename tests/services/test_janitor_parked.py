"""Upkeep that must find nothing, and upkeep that finds much at once: the safety net under session
turns, the way back of runs whose workers have died, and the count of runs that nobody can do."""

import asyncio
from typing import Any

import pytest
from tests.storage.verbs import claim, claimed, finish
from tests.support import eventually, metric, new_run, row, submit, working

from researchcopilot.agents.contract import Context
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Due, Entry
from researchcopilot.core.settings import Settings
from researchcopilot.janitor import parked
from researchcopilot.janitor.deadlines import expire
from researchcopilot.janitor.leases import Leases
from researchcopilot.janitor.no_agent import count_without_agent
from researchcopilot.janitor.parked import free_forgotten
from researchcopilot.runtime.loop import Stop
from researchcopilot.storage import returning
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.returning import Returning

pytestmark = pytest.mark.anyio
FORGOTTEN = "researchcopilot_parked_forgotten_total"


async def forget(db: Database, *run_ids: str) -> None:
    """Park them, as no move of ours does."""
    await db.execute(
        b"UPDATE runs SET parked = true WHERE run_id = ANY (%(r)s::uuid[])", {"r": list(run_ids)}
    )


async def waiting(queue: Queue) -> list[str]:
    """Run ids in the list, oldest first; it is empty then."""
    return [entry.partition(".")[2] for entry in await queue.take("runs", new_id(), 10_000)]


# Parked runs that nobody would free


async def test_a_forgotten_run_is_counted_freed_and_pushed(
    db: Database, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    session = new_id()
    first, second = await submit(db, queue, new_run(session), new_run(session))
    await waiting(queue)
    await forget(db, first, second)
    before = metric(FORGOTTEN)
    await free_forgotten(db, queue)
    assert metric(FORGOTTEN) == before + 1
    assert first in str([record.__dict__ for record in caplog.records])
    assert [(await row(db, run_id))["parked"] for run_id in (first, second)] == [False, True]
    assert await waiting(queue) == [first]
    # The next is freed by the move that ends the first: no more to be done here.
    await free_forgotten(db, queue)
    assert metric(FORGOTTEN) == before + 1
    await claimed(db, first)
    assert await finish(db, first, "succeeded") == ("succeeded", [second])


async def test_whoever_waits_rightly_is_left_alone(db: Database, queue: Queue) -> None:
    """The turn is held by a run that executes, by one that waits for its retry, or the next in line
    is queued and will be claimed."""
    sessions = [new_id() for _ in range(3)]
    ids = await submit(db, queue, *(new_run(s) for s in sessions for _ in range(2)))
    executes, retries = ids[0], ids[2]
    await claim(db, *ids[:4])
    await finish(db, retries, "retry", delay_s=60)
    assert (await claim(db, ids[5]))[ids[5]].verdict == "parked"
    before = metric(FORGOTTEN)
    await free_forgotten(db, queue)
    assert metric(FORGOTTEN) == before
    assert [(await row(db, run_id))["parked"] for run_id in (ids[1], ids[3], ids[5])] == [True] * 3
    assert (await row(db, executes))["status"] == "running"


async def test_who_is_not_due_is_nobodys_excuse(db: Database, queue: Queue) -> None:
    session = new_id()
    _, stuck = await submit(db, queue, new_run(session, delay_s=60), new_run(session))
    await forget(db, stuck)
    await free_forgotten(db, queue)
    assert not (await row(db, stuck))["parked"]


async def test_a_session_in_the_middle_of_a_move_is_not_counted(db: Database, queue: Queue) -> None:
    """It looks forgotten from outside; whoever holds its row is about to free it."""
    [stuck] = await submit(db, queue, new_run())
    await forget(db, stuck)
    before = metric(FORGOTTEN)
    async with db.transaction() as move:
        await move.execute(b"SELECT 1 FROM sessions FOR NO KEY UPDATE")
        await asyncio.wait_for(free_forgotten(db, queue), 5)
    assert metric(FORGOTTEN) == before


async def test_it_looks_at_every_page(
    db: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parked, "PAGE", 2)
    ids = await submit(db, queue, *(new_run() for _ in range(7)))
    await waiting(queue)
    await forget(db, *ids)
    await free_forgotten(db, queue)
    assert sorted(await waiting(queue)) == sorted(ids)


# The way back of many


@pytest.fixture
def stop() -> Stop:
    return Stop()


async def dead(db: Database, queue: Queue, number: int, **fields: Any) -> list[str]:
    """Runs in the hands of a worker whose lease is over."""
    ids = await submit(db, queue, *(new_run(**fields) for _ in range(number)))
    await waiting(queue)
    for start in range(0, number, 100):
        await claim(db, *ids[start : start + 100], lease_s=0.0)
    return ids


async def test_a_thousand_do_not_come_back_in_one_instant(
    settings: Settings, db: Database, queue: Queue, stop: Stop
) -> None:
    ids = await dead(db, queue, 1000)
    back = Returning(queue, stop, 0.6)
    await Leases(db, queue, settings.recovery, back).sweep()
    # In Postgres all of them are free at once, in Redis the first few are.
    assert await db.rows(b"SELECT status, count(*) FROM runs GROUP BY 1") == [("queued", 1000)]
    first = await waiting(queue)
    assert first == ids[: returning.AT_ONCE]
    assert metric("researchcopilot_reclaimed_waiting") == 950
    chunks = [first]

    async def all_back() -> bool:
        chunks.append(await waiting(queue))
        return sum(map(len, chunks)) == 1000

    await eventually(all_back, 5)
    assert sorted(run_id for chunk in chunks for run_id in chunk) == sorted(ids)
    assert len([chunk for chunk in chunks if chunk]) >= 3
    assert metric("researchcopilot_reclaimed_waiting") == 0


async def test_a_janitor_that_stops_hands_over_at_once(queue: Queue, stop: Stop) -> None:
    hints = [Due("runs", Entry(1, new_id())) for _ in range(200)]
    back = Returning(queue, stop, 600.0)
    await back.push(hints)
    stop()
    await asyncio.wait_for(back.close(), 5)
    found = await waiting(queue)
    assert sorted(found) == sorted(hint.entry.run_id for hint in hints)


async def test_a_few_come_back_at_once_each_to_its_queue(
    settings: Settings, db: Database, queue: Queue, stop: Stop
) -> None:
    one = await dead(db, queue, 3)
    runs = [new_run(queue="system") for _ in range(2)]
    other = await submit(db, queue, *runs)
    await claim(db, *other, lease_s=0.0)
    await Leases(db, queue, settings.recovery, Returning(queue, stop, 600.0)).sweep()
    assert await waiting(queue) == one
    held = await queue.take("system", new_id(), 10)
    assert [entry.partition(".")[2] for entry in held[:2]] == other


async def test_who_held_the_turn_holds_it_on_the_way_back(
    settings: Settings, db: Database, queue: Queue, stop: Stop
) -> None:
    session = new_id()
    first, second = await submit(db, queue, new_run(session), new_run(session))
    await claim(db, first, lease_s=0.0)
    await Leases(db, queue, settings.recovery, Returning(queue, stop, 600.0)).sweep()
    assert (await claim(db, second))[second].verdict == "parked"
    assert (await claim(db, first))[first].verdict == "claimed"


async def test_what_is_taken_back_is_counted_by_reason(
    settings: Settings, db: Database, queue: Queue, stop: Stop
) -> None:
    name, labels = "researchcopilot_reclaims_total", {"reason": "silent", "status": "queued"}
    before = metric(name, **labels)
    await dead(db, queue, 2)
    await Leases(db, queue, settings.recovery, Returning(queue, stop, 0.0)).sweep()
    assert metric(name, **labels) == before + 2


async def test_deadlines_are_counted_by_reason(db: Database, queue: Queue) -> None:
    reasons = ("never_started", "deadline")
    before = [metric("researchcopilot_runs_expired_total", reason=r) for r in reasons]
    ids = await submit(db, queue, *(new_run() for _ in range(3)))
    await claimed(db, ids[0])
    await finish(db, ids[0], "retry", delay_s=0)
    await db.execute(b"UPDATE runs SET deadline = clock_timestamp()")
    await expire(db, queue)
    after = [metric("researchcopilot_runs_expired_total", reason=r) for r in reasons]
    assert [a - b for a, b in zip(after, before, strict=True)] == [2, 1]


# Runs that nobody can do


async def test_runs_without_an_agent_are_shown_until_somebody_has_it(
    settings: Settings, db: Database, queue: Queue
) -> None:
    async def there(ctx: Context, given: Any) -> Any:
        return "done"

    [run_id] = await submit(db, queue, new_run(agent="elsewhere"))

    async def released() -> bool:
        found = await row(db, run_id)
        return bool(found["claim_no"] == 1 and found["status"] == "queued")

    async with working(settings, db, queue, {"there": there}):
        await eventually(released)
    await count_without_agent(db)
    assert metric("researchcopilot_runs_without_agent", agent="elsewhere") == 1
    found = await row(db, run_id)
    assert (found["attempts"], found["error"]["type"]) == (0, "no_agent")
    await db.execute(b"UPDATE runs SET run_at = clock_timestamp()")
    await claimed(db, run_id)
    await count_without_agent(db)
    assert metric("researchcopilot_runs_without_agent", agent="elsewhere") == 0
