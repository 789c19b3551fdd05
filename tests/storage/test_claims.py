"""The ledger tells of each execution who had it, when, and what came of it, also where its worker
could not say so itself."""

from typing import Any

import pytest
from tests.storage.verbs import ERROR, claim, claimed, finish
from tests.support import new_run, submit

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import WorkerInfo
from researchcopilot.storage import moves, workers
from researchcopilot.storage.claims import read_claims
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


async def registered(db: Database, **fields: Any) -> str:
    worker_id = new_id()
    fields = {"host": "node-7", "pid": 4711, "version": "1", **fields}
    await workers.register(db, WorkerInfo(worker_id, {"runs": 1}, (), **fields))
    return worker_id


async def lost(db: Database, run_id: str) -> Any:
    """Its lease runs out; the record of its only claim, and the reason that the janitor counts."""
    await db.execute(
        b"UPDATE runs SET lease_until = clock_timestamp() - interval '1 ms' WHERE run_id = %(r)s",
        {"r": run_id},
    )
    moved = await moves.reclaim(db, limit=10, max_losses=3)
    assert moved.verdicts == ((run_id, "queued"),)
    [record] = await read_claims(db, 1, run_id)
    return record, moved.reasons[0]


async def test_each_claim_is_told_with_its_worker_and_its_error(db: Database, queue: Queue) -> None:
    [run_id] = await submit(db, queue, new_run())
    worker_id = await registered(db, pod="worker-0")
    await claimed(db, run_id)
    await finish(db, run_id, "retry", error={**ERROR, "trace": "File …"}, delay_s=0)
    await claimed(db, run_id, worker_id)
    first, second = await read_claims(db, 1, run_id)
    assert (first.claim_no, first.outcome, first.by_worker) == (1, "retry", True)
    assert first.error == {**ERROR, "trace": "File …"}
    assert first.finished_at is not None and first.started_at < first.finished_at
    assert (first.host, first.pid) == (None, None)
    assert (second.claim_no, second.outcome, second.finished_at) == (2, None, None)
    assert (second.worker_id, second.host, second.pid, second.pod) == (
        worker_id, "node-7", 4711, "worker-0",
    )  # fmt: skip


async def test_a_foreign_run_has_no_claims(db: Database, queue: Queue) -> None:
    [run_id] = await submit(db, queue, new_run())
    await claimed(db, run_id)
    assert await read_claims(db, 2, run_id) == []
    assert await read_claims(db, 1, new_id()) == []


async def test_a_lost_claim_says_which_process_and_how_it_was_lost(
    db: Database, queue: Queue
) -> None:
    """Silent: it has not been seen since its lease ended."""
    [run_id] = await submit(db, queue, new_run())
    worker_id = await registered(db, pod="worker-0")
    await claimed(db, run_id, worker_id)
    await db.execute(b"UPDATE workers SET seen_at = seen_at - interval '1 minute'")
    record, reason = await lost(db, run_id)
    assert (record.outcome, record.by_worker, reason) == ("lost", False, "silent")
    assert record.error["type"] == "worker_lost"
    for word in ("node-7", "4711", "worker-0", "died", "does not count"):
        assert word in record.error["message"]


async def test_a_worker_that_left_is_told_from_one_that_forgot(db: Database, queue: Queue) -> None:
    left, forgot = await submit(db, queue, new_run(), new_run())
    worker_id = await registered(db)
    await claimed(db, left, worker_id)
    await workers.stopped(db, worker_id)
    record, reason = await lost(db, left)
    assert reason == "left" and "stopped without handing" in record.error["message"]
    worker_id = await registered(db)
    await claimed(db, forgot, worker_id)
    await db.execute(b"UPDATE workers SET seen_at = clock_timestamp() + interval '1 minute'")
    record, reason = await lost(db, forgot)
    assert reason == "forgotten" and "no longer has this run" in record.error["message"]


async def test_a_worker_whose_row_is_gone_is_no_reason_to_tell_nothing(
    db: Database, queue: Queue
) -> None:
    [run_id] = await submit(db, queue, new_run())
    await claimed(db, run_id)
    record, reason = await lost(db, run_id)
    assert reason == "silent"
    assert record.error["message"].startswith("The worker did not renew its lease")


async def test_what_is_taken_back_comes_oldest_first(db: Database, queue: Queue) -> None:
    ids = await submit(db, queue, *(new_run() for _ in range(20)))
    await claim(db, *ids, lease_s=0.0)
    await db.execute(b"UPDATE runs SET ready_at = ready_at - seq * interval '1 second'")
    moved = await moves.reclaim(db, limit=100, max_losses=3)
    assert [due.entry.run_id for due in moved.head] == ids[::-1]


async def test_why_a_deadline_passed_is_told(db: Database, queue: Queue) -> None:
    never, tried = await submit(db, queue, new_run(), new_run())
    await claimed(db, tried)
    await finish(db, tried, "retry", delay_s=0)
    await db.execute(b"UPDATE runs SET deadline = clock_timestamp()")
    moved = await moves.expire(db, limit=10)
    told = {
        run_id: reason for (run_id, _), reason in zip(moved.verdicts, moved.reasons, strict=True)
    }
    assert told == {never: "never_started", tried: "deadline"}


async def test_a_claim_that_is_sent_again_knows_how_long_its_run_was_ready(
    db: Database, queue: Queue
) -> None:
    """Its worker counts the time to the deadline from that, by the database's clock."""
    [run_id] = await submit(db, queue, new_run())
    await db.execute(b"UPDATE runs SET ready_at = ready_at - interval '1 minute'")
    claim_id = new_id()
    for wanted in ("claimed", "mine"):
        [verdict] = await moves.claim(
            db, [run_id], worker_id=new_id(), claim_id=claim_id, lease_s=60
        )
        assert verdict.verdict == wanted
        assert 60 < verdict.wait_s < 65
