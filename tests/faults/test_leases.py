"""Faults 1 and 7: leases that are as long as a guess, and rescuers that go by age. Here a lease is
short and renewed, and only a lease that has run out takes a run from its worker."""

import asyncio

import pytest
from tests.support import (
    Gate,
    claim,
    ended,
    eventually,
    ledger,
    new_run,
    submit,
    submit_one,
    waits_in,
    with_recovery,
    working,
)

from researchcopilot.core.ids import new_id
from researchcopilot.core.settings import Settings
from researchcopilot.storage import moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


async def test_01_a_run_longer_than_its_lease_is_not_run_twice(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """kombu#337: a lease that is never renewed ends while the job goes on, and it runs once more.

    Guard: a thread renews each third of the lease. Red without worker/renewal.py: `self._renew()`
    """
    gate = Gate()

    async def outlived() -> bool:
        assert (await moves.reclaim(db, limit=10, max_losses=3)).verdicts == ()
        [(old,)] = await db.rows(
            b"SELECT clock_timestamp() > started_at + interval '1.5 s' FROM runs"
        )
        return bool(old)

    async with working(with_recovery(settings, lease_s=0.5), db, queue, {"it": gate}):
        run_id = await submit_one(db, queue, "it")
        await eventually(lambda: gate.inside)
        await eventually(outlived)
        gate.open.set()
        assert (await ended(db, run_id))["status"] == "succeeded"
    assert gate.inside == [run_id]
    assert await ledger(db, run_id) == [(1, "succeeded", True)]


async def test_07_a_run_that_is_renewed_while_it_is_being_taken_back_stays(
    db: Database, queue: Queue
) -> None:
    """hexpm#1825, river#682: a rescuer that goes by what it saw once re-runs healthy jobs.

    Guard: the lease is looked at again behind the locks. Red without reclaim_2.sql: `WHEN p_workers
    IS NULL THEN r.lease_until < t`
    """
    worker_id, run = new_id(), new_run()
    await submit(db, queue, run)
    await claim(db, [run.run_id], worker_id=worker_id, lease_s=0.0)
    async with db.transaction() as connection:
        await connection.execute(
            b"SELECT 1 FROM sessions WHERE session_id = %s FOR NO KEY UPDATE", [run.session_id]
        )
        sweep = asyncio.create_task(moves.reclaim(db, limit=10, max_losses=3))
        await eventually(lambda: waits_in(db, "reclaim_2"))
        renewed = await db.rows(
            b"SELECT verdict FROM renew_2(%(w)s, ARRAY[%(r)s::uuid], ARRAY[1], interval '60 s')",
            {"w": worker_id, "r": run.run_id},
        )
    assert renewed == [("kept",)]
    assert (await sweep).verdicts == ()
    assert await ledger(db, run.run_id) == [(1, None, False)]
