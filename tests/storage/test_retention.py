"""Retention: what ended long ago goes with all that hangs on it, what lives or is young stays, and
a submit that comes at that moment loses nothing."""

import asyncio

import pytest
from tests.storage.verbs import (
    cancel,
    claim,
    claimed,
    fail,
    finish,
    open_connections,
    waits_for_a_lock,
)
from tests.support import eventually, new_run, row, submit

from researchcopilot.core.errors import Unavailable
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import IdempotencyKey, Submission
from researchcopilot.core.settings import RetentionSettings
from researchcopilot.janitor import retention
from researchcopilot.runtime.loop import Stop
from researchcopilot.storage import dead_letters
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.retention import FIRST, prune, prune_sessions
from researchcopilot.storage.submit import Submitter

pytestmark = pytest.mark.anyio
KEEP = RetentionSettings(runs_days=30, dead_days=90, keys_hours=24)


async def aged(db: Database, run_id: str, days: float) -> None:
    """As if it had ended so long ago."""
    await db.execute(
        b"UPDATE runs SET finished_at = clock_timestamp() - make_interval(secs => %(s)s)"
        b" WHERE run_id = %(r)s",
        {"r": run_id, "s": days * 86_400},
    )


async def old_sessions(db: Database) -> None:
    await db.execute(b"UPDATE sessions SET updated_at = clock_timestamp() - interval '31 days'")


async def old_sessions_gone(db: Database) -> int:
    return (await prune_sessions(db, FIRST, KEEP, 100))[0]


async def runs(db: Database) -> set[str]:
    return {found[0] for found in await db.rows(b"SELECT run_id FROM runs")}


async def test_a_run_goes_with_all_that_hangs_on_it(db: Database, queue: Queue) -> None:
    old, young = await submit(db, queue, new_run(), new_run())
    await claim(db, old, young)
    for run_id in (old, young):
        await db.execute(
            b"INSERT INTO steps (run_id, name, claim_no, workspace_id, value)"
            b" VALUES (%(r)s, 'a', 1, 1, '1')",
            {"r": run_id},
        )
        await finish(db, run_id, "succeeded")
    await aged(db, old, 30.1)
    await aged(db, young, 29.9)
    assert await prune(db, "runs", KEEP, 100) == 1
    for table in (b"runs", b"messages", b"steps", b"claims"):
        found = await db.rows(b"SELECT DISTINCT run_id FROM " + table)
        assert found == [(young,)], table


async def test_a_dead_letter_is_kept_longer_until_it_is_dealt_with(
    db: Database, queue: Queue
) -> None:
    fresh, dead, discarded, replayed, old = await submit(db, queue, *(new_run() for _ in range(5)))
    for run_id in (fresh, dead, discarded, replayed, old):
        await fail(db, run_id)
    await dead_letters.discard(db, 1, [discarded])
    await db.execute(
        b"UPDATE runs SET resolved_by = %(n)s WHERE run_id = %(r)s",
        {"r": replayed, "n": fresh},
    )
    for run_id in (dead, discarded, replayed):
        await aged(db, run_id, 31)
    await aged(db, old, 91)
    assert await prune(db, "runs", KEEP, 100) == 3
    assert await runs(db) == {fresh, dead}


async def test_what_has_not_ended_stays_however_old(db: Database, queue: Queue) -> None:
    waits, works = await submit(db, queue, new_run(), new_run())
    await claimed(db, works)
    await db.execute(b"UPDATE runs SET created_at = clock_timestamp() - interval '1 year'")
    assert await prune(db, "runs", KEEP, 100) == 0
    assert await runs(db) == {waits, works}


async def test_batches_are_small_and_the_oldest_goes_first(db: Database, queue: Queue) -> None:
    ids = await submit(db, queue, *(new_run() for _ in range(5)))
    await cancel(db, *ids)
    for number, run_id in enumerate(ids):
        await aged(db, run_id, 40 - number)
    assert await prune(db, "runs", KEEP, 2) == 2
    assert await runs(db) == set(ids[2:])


async def test_what_somebody_holds_is_left_for_the_next_time(db: Database, queue: Queue) -> None:
    ids = await submit(db, queue, new_run(), new_run())
    await cancel(db, *ids)
    for run_id in ids:
        await aged(db, run_id, 31)
    async with db.transaction() as other:
        await other.execute(b"SELECT 1 FROM runs WHERE run_id = %s FOR UPDATE", (ids[0],))
        assert await asyncio.wait_for(prune(db, "runs", KEEP, 100), 5) == 1
    assert await runs(db) == {ids[0]}


async def test_only_empty_and_untouched_sessions_go(db: Database, queue: Queue) -> None:
    empty, used = new_id(), new_id()
    await submit(db, queue, new_run(empty), new_run(used))
    await db.execute(b"DELETE FROM messages WHERE session_id = %(s)s", {"s": empty})
    await db.execute(b"DELETE FROM runs WHERE session_id = %(s)s", {"s": empty})
    assert await old_sessions_gone(db) == 0
    await old_sessions(db)
    assert await old_sessions_gone(db) == 1
    assert await db.rows(b"SELECT session_id FROM sessions") == [(used,)]


async def test_sessions_are_looked_at_page_by_page(db: Database, queue: Queue) -> None:
    """Protects: those that stay are not looked at again before all others, nor hide them."""
    used, empty = sorted(new_id() for _ in range(4)), "ffffffff-ffff-7fff-bfff-ffffffffffff"
    await submit(db, queue, *(new_run(session) for session in (*used, empty)))
    await db.execute(b"DELETE FROM messages WHERE session_id = %(s)s", {"s": empty})
    await db.execute(b"DELETE FROM runs WHERE session_id = %(s)s", {"s": empty})
    await old_sessions(db)
    assert await prune_sessions(db, FIRST, KEEP, 2) == (0, used[1])
    assert await prune_sessions(db, used[1], KEEP, 2) == (0, used[3])
    assert await prune_sessions(db, used[3], KEEP, 2) == (1, empty)
    assert await prune_sessions(db, empty, KEEP, 2) == (0, None)


async def test_a_round_goes_on_where_the_one_before_stopped(
    db: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects: a round is bounded, and still the last session is reached, and the first again."""
    monkeypatch.setattr(retention, "BATCH", 1)
    monkeypatch.setattr(retention, "PAGES", 1)
    used, empty = sorted(new_id() for _ in range(2)), "ffffffff-ffff-7fff-bfff-ffffffffffff"
    await submit(db, queue, *(new_run(session) for session in used))
    duty = retention.Retention(db, KEEP, Stop())
    for _ in range(2):
        await db.execute(
            b"INSERT INTO sessions (session_id, workspace_id, updated_at)"
            b" VALUES (%(s)s, 1, clock_timestamp() - interval '31 days')",
            {"s": empty},
        )
        left = []
        for _ in range(4):
            await duty.sweep()
            left.append(len(await db.rows(b"SELECT 1 FROM sessions")))
        assert left[0] == 3
        assert left[3] == 2


async def test_keys_hold_so_long_and_no_longer(db: Database, queue: Queue) -> None:
    submitter = Submitter(db, queue)
    for key in ("old", "new"):
        await submitter(Submission((new_run(),), IdempotencyKey(1, "r", key, "h")))
    await submitter.close()
    await db.execute(
        b"UPDATE idempotency_keys SET created_at = clock_timestamp() - interval '25 hours'"
        b" WHERE key = 'old'"
    )
    assert await prune(db, "keys", KEEP, 100) == 1
    assert await db.rows(b"SELECT key FROM idempotency_keys") == [("new",)]


async def test_a_session_that_goes_between_two_steps_of_a_submit_is_made_again(
    db: Database, queue: Queue
) -> None:
    """The submit has seen its session, and has not locked it yet: only this test makes it pause."""
    session = new_id()
    await submit(db, queue, new_run(session))
    await db.execute(b"DELETE FROM messages")
    await db.execute(b"DELETE FROM runs")
    await old_sessions(db)
    await db.execute(b"""
        CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NULL; END';
        CREATE TRIGGER pause AFTER INSERT ON sessions EXECUTE FUNCTION pause();""")
    async with db.transaction() as gate:
        await gate.execute(b"SELECT pg_advisory_xact_lock(42)")
        submitting = asyncio.create_task(submit(db, queue, new_run(session)))
        await eventually(lambda: waits_for_a_lock(db))
        assert await old_sessions_gone(db) == 1
    [run_id] = await submitting
    assert (await row(db, run_id))["session_id"] == session


@pytest.mark.parametrize("serial", [True, False], ids=["serial", "parallel"])
async def test_a_submit_into_a_session_that_is_being_removed_loses_nothing(
    db: Database, queue: Queue, serial: bool
) -> None:
    """The session was empty and old: it is removed before the submit, or is kept by it, but no run
    is refused, and none stands without its session."""
    submitters = [Submitter(db, queue) for _ in range(3)]
    sessions = [new_id() for _ in range(40)]
    await db.execute(
        b"INSERT INTO sessions (session_id, workspace_id, updated_at, created_at)"
        b" SELECT s, 1, clock_timestamp() - interval '31 days',"
        b" clock_timestamp() - interval '1 year' FROM unnest(%(s)s::uuid[]) AS s",
        {"s": sessions},
    )
    await open_connections(db, 5)
    removed = 0

    async def removes() -> None:
        nonlocal removed
        after = FIRST
        for _ in range(45):
            try:
                gone, last = await prune_sessions(db, after, KEEP, 3)
            except Unavailable:
                continue  # a run has just come: the duty's next round looks again
            removed += gone
            after = last or FIRST

    async def submits(number: int) -> None:
        for session in sessions[number::3]:
            await submitters[number](Submission((new_run(session, serial=serial),)))

    async with asyncio.timeout(20):
        await asyncio.gather(removes(), removes(), *(submits(number) for number in range(3)))
    for submitter in submitters:
        await submitter.close()
    assert removed > 0
    assert await db.rows(
        b"SELECT count(*), count(s.session_id) FROM runs r LEFT JOIN sessions s USING (session_id)"
    ) == [(40, 40)]
