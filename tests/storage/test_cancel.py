"""Cancel: at once where nobody executes, asked for where somebody does, and sticky for ever; also
while runs are claimed and finished by others in the same moment."""

import asyncio
import random

import pytest
from tests.chaos import watch
from tests.storage.verbs import (
    WORKER,
    cancel,
    claim,
    claimed,
    finish,
    open_connections,
    waits_for_a_lock,
)
from tests.support import eventually, ledger, new_run, row, submit

from researchcopilot.core.ids import new_id
from researchcopilot.storage import moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


async def test_what_waits_is_cancelled_at_once_whatever_it_waits_for(
    db: Database, queue: Queue
) -> None:
    session = new_id()
    ready, holder, parked, delayed, retried = await submit(
        db, queue, new_run(), new_run(session), new_run(session), new_run(delay_s=60), new_run()
    )
    await claim(db, holder, parked)
    await claimed(db, retried)
    assert (await finish(db, retried, "retry", delay_s=60))[0] == "queued"
    assert (await row(db, parked))["parked"]
    waiting = (ready, parked, delayed, retried)
    verdicts, unparked, asked = await cancel(db, *waiting)
    assert verdicts == dict.fromkeys(waiting, "cancelled")
    assert (unparked, asked) == ([], [])
    for run_id in waiting:
        found = await row(db, run_id)
        assert found["finished_at"] == found["cancel_requested_at"] is not None
        assert not found["parked"]
        assert (await claim(db, run_id))[run_id].verdict == "gone"
    assert await ledger(db, retried) == [(1, "retry", True)]


async def test_what_runs_is_asked_and_its_worker_named(db: Database, queue: Queue) -> None:
    [run_id] = await submit(db, queue, new_run())
    await claimed(db, run_id)
    verdicts, _, asked = await cancel(db, run_id)
    assert verdicts == {run_id: "cancelling"}
    assert asked == [(WORKER, run_id)]
    found = await row(db, run_id)
    assert (found["status"], found["finished_at"]) == ("running", None)
    assert (await finish(db, run_id, "cancelled"))[0] == "cancelled"


async def test_twice_is_the_same_answer_and_the_first_request_stands(
    db: Database, queue: Queue
) -> None:
    waits, runs = await submit(db, queue, new_run(), new_run())
    await claimed(db, runs)
    first, _, asked = await cancel(db, waits, runs)
    before = [await row(db, run_id) for run_id in (waits, runs)]
    second, _, asked_again = await cancel(db, waits, runs)
    assert first == second == {waits: "cancelled", runs: "cancelling"}
    assert asked == asked_again
    assert [await row(db, run_id) for run_id in (waits, runs)] == before


@pytest.mark.parametrize("kind", ["succeeded", "failed"])
async def test_what_has_ended_stays_as_it_is(db: Database, queue: Queue, kind: str) -> None:
    [run_id] = await submit(db, queue, new_run())
    await claimed(db, run_id)
    await finish(db, run_id, kind)
    before = await row(db, run_id)
    assert (await cancel(db, run_id))[0] == {run_id: kind}
    assert await row(db, run_id) == before


async def test_a_foreign_run_is_none(db: Database, queue: Queue) -> None:
    [theirs] = await submit(db, queue, new_run(workspace_id=2))
    assert await cancel(db, theirs, new_id()) == ({}, [], [])
    assert (await row(db, theirs))["status"] == "queued"


async def test_a_turn_is_given_on_and_only_once(db: Database, queue: Queue) -> None:
    """The run that holds the turn waits for its retry; its cancellation frees the next in line."""
    session = new_id()
    first, second, third = await submit(db, queue, *(new_run(session) for _ in range(3)))
    await claim(db, first, second, third)
    await finish(db, first, "retry", delay_s=60)
    _, unparked, _ = await cancel(db, first)
    assert unparked == [second]
    _, unparked, _ = await cancel(db, first)
    assert unparked == []
    assert [(await row(db, run_id))["parked"] for run_id in (second, third)] == [False, True]


async def test_a_whole_session_at_once_frees_nobody(db: Database, queue: Queue) -> None:
    session = new_id()
    ids = await submit(db, queue, *(new_run(session) for _ in range(3)))
    await claim(db, *ids)
    verdicts, unparked, asked = await cancel(db, *ids)
    assert verdicts == dict(zip(ids, ["cancelling", "cancelled", "cancelled"], strict=True))
    assert (unparked, asked) == ([], [(WORKER, ids[0])])


async def test_it_is_sticky_through_the_death_of_its_worker(db: Database, queue: Queue) -> None:
    session = new_id()
    [run_id, waits] = await submit(db, queue, new_run(session), new_run(session))
    await claim(db, run_id, waits, lease_s=0.0)
    await cancel(db, run_id)
    moved = await moves.reclaim(db, limit=10, max_losses=3)
    assert moved.verdicts == ((run_id, "cancelled"),)
    assert [due.entry.run_id for due in moved.tail] == [waits]
    assert moved.head == ()


@pytest.mark.parametrize("seed", range(3))
async def test_in_any_race_everything_ends_once_and_nothing_is_left(
    db: Database, queue: Queue, seed: int
) -> None:
    """Claims, finishes and cancellations of few sessions from many connections at once. A run that
    was told `cancelling` ends as cancelled, whatever its worker says then."""
    chance = random.Random(seed)
    await watch.install(db)
    sessions = [new_id() for _ in range(4)]
    runs = [new_run(chance.choice(sessions), serial=chance.random() < 0.8) for _ in range(60)]
    ids = await submit(db, queue, *runs)
    told: dict[str, str] = {}
    await open_connections(db, 7)

    async def cancels() -> None:
        """What runs, before what waits: that is where the others are."""
        for _ in range(20):
            rows = await db.rows(
                b"SELECT run_id FROM runs WHERE status IN ('queued', 'running')"
                b" ORDER BY status DESC, random() LIMIT 1"
            )
            verdicts, _, _ = await cancel(db, *(found[0] for found in rows), chance.choice(ids))
            told.update((run_id, v) for run_id, v in verdicts.items() if v.startswith("cancel"))

    async def works() -> None:
        for _ in range(400):
            rows = await db.rows(
                b"SELECT run_id FROM runs WHERE status = 'queued' AND NOT parked"
                b" ORDER BY random() LIMIT 5"
            )
            if not rows:
                return
            for verdict in (await claim(db, *(found[0] for found in rows))).values():
                if verdict.claim is not None:
                    kind = chance.choice(["succeeded", "succeeded", "retry", "release", "failed"])
                    await finish(db, verdict.run_id, kind, verdict.claim.claim_no)

    async with asyncio.timeout(20):
        await asyncio.gather(*(works() for _ in range(4)), *(cancels() for _ in range(3)))
        await works()
    assert "\n".join(watch.summary(await watch.findings(db))) == ""
    assert {"cancelled", "cancelling"} <= set(told.values())
    ended: dict[str, str] = dict(await db.rows(b"SELECT run_id, status FROM runs"))
    assert {ended[run_id] for run_id, v in told.items() if v == "cancelled"} == {"cancelled"}
    # A failure is the one thing that a worker may still say of a run that was asked to stop.
    assert {ended[run_id] for run_id in told} <= {"cancelled", "failed"}


async def test_a_request_that_meets_a_claim_is_never_lost(db: Database, queue: Queue) -> None:
    """Each run is claimed and cancelled in the same moment: either it never starts, or its worker
    is named to be told."""
    ids = await submit(db, queue, *(new_run() for _ in range(40)))
    await open_connections(db, 2)
    for run_id in ids:
        (verdicts, _, asked), claims = await asyncio.gather(cancel(db, run_id), claim(db, run_id))
        started = claims[run_id].claim is not None
        assert verdicts[run_id] == ("cancelling" if started else "cancelled")
        assert asked == ([(WORKER, run_id)] if started else [])


async def test_times_have_the_order_of_the_moves(db: Database, queue: Queue) -> None:
    """A cancellation that waited for another move says when it was made, not when it was asked."""
    [run_id] = await submit(db, queue, new_run(serial=False))
    async with db.transaction() as other:
        await other.execute(b"SELECT 1 FROM runs FOR UPDATE")
        asking = asyncio.create_task(cancel(db, run_id))
        await eventually(lambda: waits_for_a_lock(db))
        [(held_until,)] = await (await other.execute(b"SELECT clock_timestamp()")).fetchall()
    await asking
    assert (await row(db, run_id))["finished_at"] > held_until
