"""on_conflict: `reject` and `cancel_previous` are decided at submit, under the session's lock. They
hold whoever submits, claims, finishes and cancels in the same moment."""

import asyncio
import random
from dataclasses import replace

import pytest
from tests.chaos import watch
from tests.storage.verbs import WORKER, cancel, claim, claimed, finish, open_connections
from tests.support import new_run, row, submit

from researchcopilot.core.errors import Conflict, NotFound
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import IdempotencyKey, NewRun, Submission
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.submit import Submitter

pytestmark = pytest.mark.anyio
# Runs that were accepted although another serial run of their session, older than they, was busy:
# it held the turn or was due, and had not ended when they were made.
ACCEPTED_WHILE_BUSY = b"""
    SELECT r.run_id, o.run_id FROM runs r JOIN runs o USING (session_id)
    WHERE r.metadata ->> 'how' = 'reject' AND o.serial AND o.seq < r.seq
      AND (o.finished_at IS NULL OR o.finished_at > r.created_at)"""
# Runs that were neither ended nor asked to stop when one came that cancels what is before it.
NOT_ASKED = b"""
    SELECT r.run_id, o.run_id FROM runs r JOIN runs o USING (session_id)
    WHERE r.metadata ->> 'how' = 'cancel_previous' AND o.serial AND o.seq < r.seq
      AND coalesce(least(o.finished_at, o.cancel_requested_at) > r.created_at, true)"""
SOME = b"SELECT run_id FROM runs WHERE status = 'queued' AND NOT parked ORDER BY random() LIMIT 3"


def wanting(session_id: str, how: str) -> NewRun:
    """A run of that session with this on_conflict, which it also bears as a mark."""
    run = new_run(session_id, metadata={"how": how}, serial=how != "parallel")
    return replace(run, on_conflict=how) if how != "parallel" else run


async def accepted(submitter: Submitter, run: NewRun) -> bool:
    try:
        await submitter(Submission((run,)))
    except Conflict as error:
        assert error.code == "session_busy"
        return False
    return True


async def test_reject_names_the_run_in_the_way(db: Database, queue: Queue) -> None:
    session = new_id()
    [first] = await submit(db, queue, wanting(session, "queue"))
    submitter = Submitter(db, queue)
    with pytest.raises(Conflict, match=first):
        await submitter(Submission((wanting(session, "reject"),)))
    await claimed(db, first)
    with pytest.raises(Conflict, match=first):
        await submitter(Submission((wanting(session, "reject"),)))
    await finish(db, first, "succeeded")
    assert await accepted(submitter, wanting(session, "reject"))
    await submitter.close()


async def test_what_is_not_due_and_what_is_parallel_is_in_nobodys_way(
    db: Database, queue: Queue
) -> None:
    session = new_id()
    await submit(db, queue, new_run(session, delay_s=60), wanting(session, "parallel"))
    submitter = Submitter(db, queue)
    assert await accepted(submitter, wanting(session, "reject"))
    await submitter.close()


async def test_a_rejected_request_leaves_nothing_and_its_key_free(
    db: Database, queue: Queue
) -> None:
    session = new_id()
    [first] = await submit(db, queue, wanting(session, "queue"))
    submitter = Submitter(db, queue)
    key = IdempotencyKey(1, "POST /v1/runs", "k", "h")

    def request() -> Submission:
        return Submission((wanting(session, "reject"), new_run()), key)

    with pytest.raises(Conflict):
        await submitter(request())
    assert await db.rows(b"SELECT count(*) FROM runs") == [(1,)]
    await cancel(db, first)
    accepted_one = request()
    done = await submitter(accepted_one)
    assert (done.replayed, len(done.run_ids)) == (False, 2)
    # The answer was lost, and it is sent again: what came after it is not in its way.
    await submit(db, queue, wanting(session, "queue"))
    again = await submitter(accepted_one)
    assert again.run_ids == done.run_ids
    await submitter.close()


async def test_cancel_previous_ends_what_waits_and_asks_what_runs(
    db: Database, queue: Queue
) -> None:
    session = new_id()
    runs, parked, later, beside = await submit(
        db,
        queue,
        wanting(session, "queue"),
        wanting(session, "queue"),
        new_run(session, delay_s=60),
        wanting(session, "parallel"),
    )
    await claim(db, runs, parked)
    [last] = await submit(db, queue, wanting(session, "cancel_previous"))
    found = [(await row(db, run_id))["status"] for run_id in (runs, parked, later, beside, last)]
    assert found == ["running", "cancelled", "cancelled", "queued", "queued"]
    assert (await claim(db, last))[last].verdict == "parked"
    assert await finish(db, runs, "succeeded") == ("cancelled", [last])


async def test_the_worker_is_told_at_once(db: Database, queue: Queue) -> None:
    session = new_id()
    [run_id] = await submit(db, queue, wanting(session, "queue"))
    await claimed(db, run_id)
    told = queue.told(WORKER)
    assert await asyncio.wait_for(anext(told), 5) is None  # it listens
    await submit(db, queue, wanting(session, "cancel_previous"))
    assert await asyncio.wait_for(anext(told), 5) == run_id
    await told.aclose()


async def test_of_many_at_once_one_is_accepted(db: Database, queue: Queue) -> None:
    """From several processes, as it were: each submitter has a group of its own. The session is
    there already; a new one would be made by one of them, and the others would wait for that."""
    submitters = [Submitter(db, queue) for _ in range(6)]
    await open_connections(db, 6)
    for _ in range(5):
        session = new_id()
        [before] = await submit(db, queue, wanting(session, "queue"))
        await cancel(db, before)
        done = await asyncio.gather(
            *(accepted(submitters[n % 6], wanting(session, "reject")) for n in range(12))
        )
        assert sum(done) == 1
    for submitter in submitters:
        await submitter.close()


async def test_of_many_that_cancel_the_last_one_stays(db: Database, queue: Queue) -> None:
    submitters = [Submitter(db, queue) for _ in range(6)]
    session = new_id()
    await open_connections(db, 6)
    runs = [wanting(session, "cancel_previous") for _ in range(24)]
    done = await asyncio.gather(*(accepted(submitters[n % 6], run) for n, run in enumerate(runs)))
    assert all(done)
    left = await db.rows(b"SELECT status, seq = max(seq) OVER () FROM runs ORDER BY seq")
    assert left == [("cancelled", False)] * 23 + [("queued", True)]
    for submitter in submitters:
        await submitter.close()


@pytest.mark.parametrize("seed", range(3))
async def test_the_rules_hold_in_any_race(db: Database, queue: Queue, seed: int) -> None:
    """Few sessions; submits of all four kinds, claims, finishes and cancellations at once."""
    chance = random.Random(seed)
    await watch.install(db)
    sessions = [new_id() for _ in range(6)]
    counts = {"reject": 0, "busy": 0}
    open_for_business = True
    await open_connections(db, 8)

    async def submits() -> None:
        submitter = Submitter(db, queue)
        for _ in range(30):
            how = chance.choice(["queue", *["reject"] * 4, "parallel", "cancel_previous"])
            if await accepted(submitter, wanting(chance.choice(sessions), how)):
                counts["reject"] += how == "reject"
            else:
                counts["busy"] += 1
        await submitter.close()

    async def works() -> None:
        while rows := await db.rows(SOME) or open_for_business:
            ids = [row[0] for row in rows] if isinstance(rows, list) else []
            for verdict in (await claim(db, *ids)).values() if ids else ():
                if verdict.claim is not None:
                    kind = chance.choice(["succeeded", "failed", "release"])
                    await finish(db, verdict.run_id, kind, verdict.claim.claim_no)
            if chance.random() < 0.1 and ids:
                await cancel(db, chance.choice(ids))

    async with asyncio.timeout(25):
        workers = [asyncio.create_task(works()) for _ in range(4)]
        await asyncio.gather(*(submits() for _ in range(3)))
        open_for_business = False
        await asyncio.gather(*workers)
        await works()
    assert await db.rows(ACCEPTED_WHILE_BUSY) == []
    assert await db.rows(NOT_ASKED) == []
    assert "\n".join(watch.summary(await watch.findings(db))) == ""
    assert min(counts.values()) > 0, counts


async def test_two_of_one_key_are_refused_alike_in_one_group(db: Database, queue: Queue) -> None:
    """Protects: nobody is told of runs that were never made. In one call the second of a key would
    be answered with the ids of the first before the first is refused."""
    session = new_id()
    await submit(db, queue, new_run(session, workspace_id=2))
    key = IdempotencyKey(1, "POST /v1/runs", "k", "h")
    submitter = Submitter(db, queue)
    first = submitter(Submission((new_run(),)))  # the lane is busy: the next two share a group
    same = [submitter(Submission((new_run(session),), key)) for _ in range(2)]
    answers = await asyncio.gather(first, *same, return_exceptions=True)
    await submitter.close()
    assert [type(answer) for answer in answers[1:]] == [NotFound, NotFound]
