"""Faults 4, 5 and 10: what the row, the list and the lease say of a run can disagree in every way.
Each way is found by somebody, and nobody takes a moment in between for a fault."""

import logging
from collections.abc import Awaitable, Callable

import psycopg
import pytest
from tests.support import (
    claim,
    echo,
    empty,
    ended,
    eventually,
    ledger,
    new_run,
    prompt,
    submit,
    submit_one,
    waits_in,
    working,
)

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import WorkerInfo
from researchcopilot.core.settings import Settings
from researchcopilot.janitor.entries import clear_dead
from researchcopilot.janitor.leases import Leases
from researchcopilot.janitor.probes import find_lost
from researchcopilot.runtime.loop import Stop
from researchcopilot.storage import workers
from researchcopilot.storage.checks import check_redis
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.returning import Returning

pytestmark = pytest.mark.anyio
Round = Callable[[], Awaitable[None]]


@pytest.fixture
async def janitor(settings: Settings, db: Database, queue: Queue, anyio_backend: str) -> Round:
    """One round of the duties that look after lists and leases."""
    recovery = settings.recovery
    leases = Leases(db, queue, recovery, Returning(queue, Stop(), recovery.spread_s))

    async def round_() -> None:
        await leases.sweep()
        await clear_dead(db, queue, recovery)
        await find_lost(db, queue, recovery)

    return round_


async def all_ended(db: Database, janitor: Round) -> bool:
    """After one more round."""
    await janitor()
    return await db.rows(b"SELECT 1 FROM runs WHERE finished_at IS NULL") == []


async def long_dead(db: Database) -> str:
    """A worker that was killed a minute ago."""
    worker_id = new_id()
    await workers.register(db, WorkerInfo(worker_id, {"runs": 1}, (), "host", 1, "0"))
    await db.execute(
        b"UPDATE workers SET seen_at = seen_at - interval '1 minute' WHERE worker_id = %(w)s",
        {"w": worker_id},
    )
    return worker_id


async def test_04_what_was_just_taken_and_is_not_claimed_yet_is_left_alone(
    settings: Settings, db: Database, queue: Queue, janitor: Round
) -> None:
    """saq#124, rq#2061: the id is moved first and the status written later; a sweeper in between
    takes the entry for lost, and the job runs and is failed at once.

    Guard: only lists of workers that are dead by their row are moved. Red without workers.sql:
    `WHERE (stopped_at IS NOT NULL OR seen_at < …`
    """
    run_id = await submit_one(db, queue)
    with psycopg.connect(settings.database.url) as blocker:
        blocker.execute("SELECT 1 FROM runs FOR UPDATE")
        async with working(settings, db, queue, {"echo": echo}) as worker:
            await eventually(lambda: waits_in(db, "claim_1"))
            for _ in range(3):
                await janitor()
            assert f"1.{run_id}" in await queue.in_hands("runs", worker.info.worker_id)
            with prompt(settings) as client:
                assert f"1.{run_id}" not in client.lrange("queue:runs", 0, -1)
            blocker.rollback()
            assert (await ended(db, run_id))["status"] == "succeeded"
    assert await ledger(db, run_id) == [(1, "succeeded", True)]


async def test_05_whatever_is_missing_of_row_list_and_lease_each_run_ends_once(
    settings: Settings, db: Database, queue: Queue, janitor: Round
) -> None:
    """asynq#1144: a recoverer that scans one of the two never sees what is missing in the other.

    Guard: a duty for each pair. Red without storage/taking_back.py: `moved = await moves.reclaim(…`
    """
    dead = await long_dead(db)
    taken, running, both, lost = runs = [new_run() for _ in range(4)]
    await submit(db, queue, *runs)
    entries = {run.run_id: f"1.{run.run_id}" for run in runs}
    with prompt(settings) as client:
        client.delete("queue:runs")
        client.rpush(f"queue:runs:processing:{dead}", entries[taken.run_id], entries[both.run_id])
        client.rpush("queue:runs", f"1.{new_id()}")  # an entry that has no row
    await claim(db, [running.run_id, both.run_id], worker_id=dead, lease_s=0.0)

    async with working(settings, db, queue, {"echo": echo}):
        await eventually(lambda: all_ended(db, janitor))
        await eventually(lambda: empty(queue))
    once, again = [(1, "succeeded", True)], [(1, "lost", False), (2, "succeeded", True)]
    for run, expected in ((taken, once), (lost, once), (running, again), (both, again)):
        assert await ledger(db, run.run_id) == expected


async def test_10_keys_that_redis_throws_away_cost_no_run_and_the_policy_is_told(
    settings: Settings, db: Database, queue: Queue, janitor: Round,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """bullmq#1046: on a Redis that evicts, jobs and locks disappear under memory pressure.

    Guard: a warning at the start, and rows that outlive every key. Red without storage/checks.py:
    `if facts.eviction not in (None, "noeviction"):`
    """
    with prompt(settings) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            with caplog.at_level(logging.WARNING):
                await check_redis(queue)
        finally:
            client.config_set("maxmemory-policy", "noeviction")
        assert "maxmemory-policy allkeys-lru" in caplog.text
        ids = await submit(db, queue, *(new_run() for _ in range(3)))
        client.delete("queue:runs")  # what the policy does; the epoch happens to stay

    async with working(settings, db, queue, {"echo": echo}):
        await eventually(lambda: all_ended(db, janitor))
    for run_id in ids:
        assert await ledger(db, run_id) == [(1, "succeeded", True)]
