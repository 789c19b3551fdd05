"""Each move of a run, one at a time: verdicts, guards, and that sending it twice is safe."""

import asyncio
from typing import Any

import pytest

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import IdempotencyKey, NewRun, Outcome, Submission
from researchcopilot.core.settings import Settings
from researchcopilot.storage import moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.renewal import Renewer
from researchcopilot.storage.submit import Submitter

pytestmark = pytest.mark.anyio
WORKER = new_id()


def new_run(session_id: str | None = None, **fields: Any) -> NewRun:
    fields = {"agent": "echo", "queue": "runs", "input": "hello", "workspace_id": 1, **fields}
    return NewRun(run_id=new_id(), session_id=session_id or new_id(), **fields)


async def submit(db: Database, queue: Queue, *runs: NewRun) -> list[str]:
    submitter = Submitter(db, queue)
    done = await submitter(Submission(runs))
    await submitter.close()
    return list(done.run_ids)


async def claim(db: Database, *run_ids: str, worker_id: str = WORKER, **options: Any) -> Any:
    options = {"claim_id": new_id(), "lease_s": 60.0, **options}
    verdicts = await moves.claim(db, run_ids, worker_id=worker_id, **options)
    return {verdict.run_id: verdict for verdict in verdicts}


async def finish(db: Database, run_id: str, kind: str, claim_no: int = 1, **fields: Any) -> str:
    outcome = Outcome(run_id, claim_no, WORKER, kind, **fields)
    return (await moves.finish(db, WORKER, [outcome]))[0][0].verdict


async def row(db: Database, run_id: str) -> dict[str, Any]:
    found = await db.one(b"SELECT * FROM runs WHERE run_id = %(r)s", {"r": run_id})
    assert found is not None
    return found


async def test_a_run_goes_from_submit_to_success(db: Database, queue: Queue) -> None:
    run = new_run(input={"question": "why?"})
    await submit(db, queue, run)
    assert (await queue.depths("runs")).waiting == 1
    verdict = (await claim(db, run.run_id))[run.run_id]
    assert verdict.verdict == "claimed"
    assert verdict.claim.input == {"question": "why?"}
    assert (verdict.claim.claim_no, verdict.claim.attempts) == (1, 1)
    assert (
        await finish(db, run.run_id, "succeeded", result='{"answer": "so", "n": 1}') == "succeeded"
    )
    messages = await db.rows(b"SELECT role, payload FROM messages ORDER BY message_id")
    assert messages == [
        ("user", {"content": {"question": "why?"}}),
        ("assistant", {"content": "so", "n": 1}),
    ]
    ledger = await db.rows(b"SELECT claim_no, outcome, by_worker FROM claims")
    assert ledger == [(1, "succeeded", True)]


async def test_claim_twice_is_mine_and_another_claim_is_gone(db: Database, queue: Queue) -> None:
    [run_id] = await submit(db, queue, new_run())
    claim_id = new_id()
    assert (await claim(db, run_id, claim_id=claim_id))[run_id].verdict == "claimed"
    again = (await claim(db, run_id, claim_id=claim_id))[run_id]
    assert (again.verdict, again.claim.claim_no, again.claim.attempts) == ("mine", 1, 1)
    assert (await claim(db, run_id))[run_id].verdict == "gone"
    assert (await claim(db, new_id())).popitem()[1].verdict == "gone"


async def test_a_run_that_is_not_due_comes_later(db: Database, queue: Queue) -> None:
    [run_id] = await submit(db, queue, new_run(delay_s=60))
    assert (await queue.depths("runs")).delayed == 1
    verdict = (await claim(db, run_id))[run_id]
    assert verdict.verdict == "later"
    assert 50 < verdict.wait_s <= 60


async def test_finish_twice_is_already_and_a_late_one_is_stale(db: Database, queue: Queue) -> None:
    [run_id] = await submit(db, queue, new_run())
    await claim(db, run_id)
    assert await finish(db, run_id, "succeeded", result='"a"') == "succeeded"
    assert await finish(db, run_id, "succeeded", result='"a"') == "already"
    assert await finish(db, run_id, "failed", claim_no=2, error={"type": "x"}) == "stale"
    assert (await row(db, run_id))["result"] == "a"


async def test_a_retry_waits_and_the_last_attempt_fails(db: Database, queue: Queue) -> None:
    [run_id] = await submit(db, queue, new_run(max_attempts=2))
    error = {"type": "E", "message": "no"}
    await claim(db, run_id)
    assert await finish(db, run_id, "retry", error=error, delay_s=30) == "queued"
    assert (await claim(db, run_id))[run_id].verdict == "later"
    await db.execute(b"UPDATE runs SET run_at = clock_timestamp()")
    assert (await claim(db, run_id))[run_id].claim.attempts == 2
    assert await finish(db, run_id, "retry", claim_no=2, error=error, delay_s=30) == "failed"
    assert (await row(db, run_id))["error"] == error


async def test_a_retry_after_the_deadline_is_a_failure(db: Database, queue: Queue) -> None:
    [run_id] = await submit(db, queue, new_run())
    await claim(db, run_id)
    await db.execute(b"UPDATE runs SET deadline = clock_timestamp() + interval '10 seconds'")
    assert await finish(db, run_id, "retry", error={"type": "E"}, delay_s=30) == "failed"


async def test_release_refunds_the_attempt(db: Database, queue: Queue) -> None:
    [run_id] = await submit(db, queue, new_run())
    await claim(db, run_id)
    assert await finish(db, run_id, "release") == "queued"
    found = await row(db, run_id)
    assert (found["claim_no"], found["attempts"]) == (1, 0)
    assert found["hinted_at"] is not None


@pytest.mark.parametrize("kind", ["succeeded", "retry", "release", "cancelled"])
async def test_a_cancel_request_is_sticky(db: Database, queue: Queue, kind: str) -> None:
    [run_id] = await submit(db, queue, new_run())
    await claim(db, run_id)
    await db.execute(b"UPDATE runs SET cancel_requested_at = clock_timestamp()")
    assert await finish(db, run_id, kind, result='"late"', error={"type": "E"}) == "cancelled"
    assert (await row(db, run_id))["result"] is None


async def test_reclaim_counts_losses_until_worker_lost(db: Database, queue: Queue) -> None:
    [run_id] = await submit(db, queue, new_run())
    for losses in (1, 2, 3):
        assert (await claim(db, run_id, lease_s=0.0))[run_id].verdict == "claimed"
        moved = await moves.reclaim(db, limit=10, max_losses=3)
        assert moved.verdicts == ((run_id, "failed" if losses == 3 else "queued"),)
        found = await row(db, run_id)
        assert (found["attempts"], found["losses"]) == (0, losses)
    assert found["error"]["type"] == "worker_lost"
    assert (await moves.reclaim(db, limit=10, max_losses=3)).verdicts == ()


async def test_reclaim_leaves_a_lease_that_is_good(db: Database, queue: Queue) -> None:
    [run_id] = await submit(db, queue, new_run())
    await claim(db, run_id, lease_s=60.0)
    assert (await moves.reclaim(db, limit=10, max_losses=3)).verdicts == ()


async def test_a_reclaimed_run_refuses_its_old_worker(db: Database, queue: Queue) -> None:
    [run_id] = await submit(db, queue, new_run())
    await claim(db, run_id, lease_s=0.0)
    await moves.reclaim(db, limit=10, max_losses=3)
    other = new_id()
    assert (await claim(db, run_id, worker_id=other))[run_id].claim.claim_no == 2
    assert await finish(db, run_id, "succeeded", result='"late"') == "stale"
    assert (await row(db, run_id))["worker_id"] == other


async def test_past_its_deadline_a_run_fails_and_is_not_claimed(db: Database, queue: Queue) -> None:
    [run_id] = await submit(db, queue, new_run())
    await db.execute(b"UPDATE runs SET deadline = clock_timestamp()")
    assert (await claim(db, run_id))[run_id].verdict == "gone"
    assert (await moves.expire(db, limit=10)).verdicts == ((run_id, "failed"),)
    assert (await row(db, run_id))["error"]["type"] == "never_started"


async def test_serial_runs_of_a_session_take_turns(db: Database, queue: Queue) -> None:
    session = new_id()
    first, second, third = (new_run(session) for _ in range(3))
    await submit(db, queue, first, second, third)
    verdicts = await claim(db, third.run_id, first.run_id, second.run_id)
    assert [verdicts[r.run_id].verdict for r in (first, second, third)] == [
        "claimed", "parked", "parked",
    ]  # fmt: skip
    done, unparked = await moves.finish(
        db, WORKER, [Outcome(first.run_id, 1, WORKER, "succeeded", result='"x"')]
    )
    assert done[0].verdict == "succeeded"
    assert [hint.entry.run_id for hint in unparked] == [second.run_id]
    assert (await claim(db, second.run_id))[second.run_id].verdict == "claimed"
    assert (await claim(db, third.run_id))[third.run_id].verdict == "parked"


async def test_a_turn_is_held_through_a_retry(db: Database, queue: Queue) -> None:
    session = new_id()
    first, second = new_run(session), new_run(session)
    await submit(db, queue, first, second)
    await claim(db, first.run_id)
    assert await finish(db, first.run_id, "retry", error={"type": "E"}, delay_s=60) == "queued"
    assert (await claim(db, second.run_id))[second.run_id].verdict == "parked"


async def test_parallel_runs_do_not_wait(db: Database, queue: Queue) -> None:
    session = new_id()
    first, second = new_run(session), new_run(session, serial=False)
    await submit(db, queue, first, second)
    await claim(db, first.run_id)
    assert (await claim(db, second.run_id))[second.run_id].verdict == "claimed"


async def test_an_expired_run_gives_the_turn_on(db: Database, queue: Queue) -> None:
    session = new_id()
    first, second = new_run(session), new_run(session)
    await submit(db, queue, first, second)
    assert (await claim(db, second.run_id))[second.run_id].verdict == "parked"
    await db.execute(
        b"UPDATE runs SET deadline = clock_timestamp() WHERE run_id = %(r)s", {"r": first.run_id}
    )
    moved = await moves.expire(db, limit=10)
    assert [hint.entry.run_id for hint in moved.tail] == [second.run_id]


async def test_one_key_makes_one_run(db: Database, queue: Queue) -> None:
    submitter = Submitter(db, queue)

    def member(body: str) -> Submission:
        return Submission((new_run(),), IdempotencyKey(1, "POST /v1/runs", "k", body))

    first = await submitter(member("h"))
    again = await submitter(member("h"))
    assert (again.replayed, again.run_ids) == (True, first.run_ids)
    with pytest.raises(Exception, match="another body"):
        await submitter(member("other"))
    await submitter.close()
    assert await db.rows(b"SELECT count(*) FROM runs") == [(1,)]


async def test_a_foreign_session_refuses_all_of_its_member(db: Database, queue: Queue) -> None:
    session = new_id()
    await submit(db, queue, new_run(session, workspace_id=2))
    submitter = Submitter(db, queue)
    key = IdempotencyKey(1, "POST /v1/runs", "k", "h")
    with pytest.raises(Exception, match="no such session"):
        await submitter(Submission((new_run(), new_run(session)), key))
    done = await submitter(Submission((new_run(), new_run()), key))
    assert not done.replayed
    await submitter.close()
    assert await db.rows(b"SELECT count(*) FROM sessions") == [(3,)]


async def test_submit_sent_twice_is_one(db: Database, queue: Queue) -> None:
    submitter = Submitter(db, queue)
    member = Submission((new_run(), new_run()), IdempotencyKey(1, "r", "k", "h"))
    first, second = await submitter(member), await submitter(member)
    assert (first.run_ids, second.run_ids, second.replayed) == (first.run_ids,) * 2 + (False,)
    await submitter.close()
    assert await db.rows(b"SELECT count(*) FROM messages") == [(2,)]


def test_a_unique_key_comes_alone_and_without_an_idempotency_key() -> None:
    """Where another waits already none is made: a key must not name it, nor others come with it."""
    run = new_run(unique_key="rebuild", serial=False)
    key = IdempotencyKey(1, "POST /v1/runs", "k", "h")
    for runs, idempotency in (((run,), key), ((run, new_run()), None)):
        with pytest.raises(ValueError, match="unique_key"):
            Submission(runs, idempotency)


async def test_one_unclaimed_run_of_a_unique_key(db: Database, queue: Queue) -> None:
    def rebuild() -> NewRun:
        return new_run(unique_key="rebuild", serial=False)

    submitter = Submitter(db, queue)
    first = await submitter(Submission((rebuild(),)))
    second = await submitter(Submission((rebuild(),)))
    assert (second.run_ids, second.replayed) == (first.run_ids, True)
    await claim(db, first.run_ids[0])
    third = await submitter(Submission((rebuild(),)))
    assert third.run_ids != first.run_ids
    await submitter.close()


async def test_renewal_names_exactly_its_pairs(
    db: Database, queue: Queue, settings: Settings
) -> None:
    kept, asked, lost = await submit(db, queue, new_run(), new_run(), new_run())
    await claim(db, kept, asked, lost)
    await db.execute(
        b"UPDATE runs SET cancel_requested_at = clock_timestamp() WHERE run_id = %(r)s",
        {"r": asked},
    )
    renewer = Renewer(settings.database, 5.0)
    verdicts = renewer.renew(WORKER, [(kept, 1), (asked, 1), (lost, 2)], 60.0)
    renewer.close()
    assert verdicts == {(kept, 1): "kept", (asked, 1): "cancel", (lost, 2): "lost"}


async def test_renewal_waits_for_no_lock(db: Database, queue: Queue, settings: Settings) -> None:
    """What is locked is as it was (busy), and lost if it is another's; the others are renewed."""
    locked, kept = await submit(db, queue, new_run(), new_run())
    await claim(db, locked, kept)
    renewer = Renewer(settings.database, 5.0)
    pairs = [(locked, 1), (locked, 2), (kept, 1)]
    async with db.transaction() as somebody:
        await somebody.execute(b"SELECT 1 FROM runs WHERE run_id = %s FOR UPDATE", [locked])
        verdicts = await asyncio.to_thread(renewer.renew, WORKER, pairs, 90.0)
    assert verdicts == {(locked, 1): "busy", (locked, 2): "lost", (kept, 1): "kept"}
    assert renewer.renew(WORKER, pairs[:1], 90.0) == {(locked, 1): "kept"}
    renewer.close()
