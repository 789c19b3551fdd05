"""How long a run was in dead hands: from the last sign of life of its worker, by the database."""

import pytest
from tests.support import claim, echo, ended, metric, new_run, submit, working

from researchcopilot.core.ids import new_id
from researchcopilot.core.settings import Settings
from researchcopilot.storage import moves
from researchcopilot.storage.claims import waited_since_loss
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio
AGO = (
    b"UPDATE workers SET seen_at = clock_timestamp() - interval '40 seconds',"
    b" stopped_at = CASE WHEN %(left)s THEN clock_timestamp() - interval '20 seconds' END"
)
ALIVE = b"UPDATE workers SET seen_at = clock_timestamp() + interval '1 minute'"
CLAIMED = b"UPDATE claims SET started_at = clock_timestamp() - interval '%b seconds'"
ASKED = b"UPDATE runs SET cancel_requested_at = clock_timestamp() WHERE run_id = %(r)s"
LEASE = (
    b"UPDATE runs SET lease_until = clock_timestamp() - interval '10 seconds'"
    b" WHERE worker_id IS NOT NULL"
)


async def in_hands(db: Database, queue: Queue, worker_id: str, number: int = 1) -> list[str]:
    ids = await submit(db, queue, *(new_run() for _ in range(number)))
    await claim(db, ids, worker_id=worker_id)
    return ids


@pytest.mark.parametrize(
    ("reason", "seconds"), [("silent", 40), ("silent claimed later", 30), ("left", 20),
                            ("forgotten", 10), ("silent unknown", 60)],
)  # fmt: skip
async def test_it_is_since_the_last_sign_of_life(
    db: Database, queue: Queue, settings: Settings, reason: str, seconds: float
) -> None:
    """Protects: the number on the dashboard is what the user has waited, not what a sweep took."""
    async with working(settings, db, queue, {"echo": echo}) as worker:
        worker_id = worker.info.worker_id
    [run_id] = await in_hands(db, queue, worker_id)
    await db.execute(AGO, {"left": reason == "left"})
    await db.execute(CLAIMED % (b"30" if reason == "silent claimed later" else b"60"))
    await db.execute(LEASE)
    if reason == "forgotten":
        await db.execute(ALIVE)
    if reason == "silent unknown":
        await db.execute(b"DELETE FROM workers")
    moved = await moves.reclaim(db, limit=10, max_losses=3)
    assert moved.verdicts == ((run_id, "queued"),)
    assert moved.reasons == (reason.split()[0],)
    [found] = moved.recovery_s
    assert found is not None
    assert seconds <= found < seconds + 5


async def test_many_come_back_in_their_order_each_with_its_own(db: Database, queue: Queue) -> None:
    """Protects: the oldest first; the join that measures must not shuffle them, nor drop those
    that were freed with them."""
    session = new_id()
    waits, follows = await submit(db, queue, new_run(session), new_run(session))
    ids = await in_hands(db, queue, new_id(), 60)
    await claim(db, [waits], worker_id=new_id())
    await claim(db, [follows], worker_id=new_id())
    await db.execute(LEASE)
    await db.execute(ASKED, {"r": waits})
    moved = await moves.reclaim(db, limit=100, max_losses=3)
    assert [run_id for run_id, _ in moved.verdicts] == [waits, *ids]
    assert len(moved.recovery_s) == len(moved.reasons) == 61
    assert [hint.entry.run_id for hint in moved.tail] == [follows]


async def test_the_next_claim_tells_how_long_it_waited(
    db: Database, queue: Queue, settings: Settings
) -> None:
    """Protects: measured from taken back to claimed, and only where the claim before was lost;
    nor is it a wait in the queue that it was executing before."""
    name, waited = (
        "researchcopilot_reclaimed_wait_seconds_count",
        "researchcopilot_run_wait_seconds",
    )
    before = metric(name, queue="runs"), metric(f"{waited}_count", queue="runs")
    lost, _ = await in_hands(db, queue, new_id(), 2)
    await db.execute(LEASE + b" AND run_id = %(r)s", {"r": lost})
    await moves.reclaim(db, limit=10, max_losses=3)
    await db.execute(b"UPDATE claims SET finished_at = finished_at - interval '7 seconds'")
    async with working(settings, db, queue, {"echo": echo}):
        await ended(db, lost)
    assert await waited_since_loss(db, lost, 1) is None
    assert 7 <= (await waited_since_loss(db, lost, 2) or 0) < 12
    assert (metric(name, queue="runs"), metric(f"{waited}_count", queue="runs")) == (
        before[0] + 1,
        before[1],
    )
