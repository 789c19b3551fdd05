"""Delayed and retried runs under several schedulers, as processes that are killed: each comes to
its queue once, at its time, and none is lost between the set and the list."""

import asyncio
from typing import Any

import pytest
from tests.conftest import Parts
from tests.services.conftest import Fragile
from tests.support import (
    empty,
    ended,
    eventually,
    ledger,
    new_run,
    prompt,
    submit,
    submit_one,
    with_worker,
    working,
)

from researchcopilot.core.settings import Settings
from researchcopilot.runtime.loop import Stop
from researchcopilot.scheduler import due
from researchcopilot.scheduler.due import DueMover
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


async def test_three_schedulers_fire_each_run_once_and_on_time(
    parts: Parts, settings: Settings, db: Database, queue: Queue
) -> None:
    for _ in range(3):
        parts("scheduler").launch()
    runs = [new_run(agent="it", delay_s=0.3 + n / 200) for n in range(60)]

    async def agent(ctx: Any, given: Any) -> None: ...

    async with working(settings, db, queue, {"it": agent}, queues={"runs": 8}):
        await submit(db, queue, *runs)
        for run in runs:
            await ended(db, run.run_id)
        await eventually(lambda: empty(queue))
    late = await db.rows(
        b"SELECT extract(epoch FROM started_at - run_at)::float8 AS late FROM runs ORDER BY 1"
    )
    assert late[0][0] >= 0
    assert late[len(late) // 2][0] < 1, late
    assert await db.rows(b"SELECT count(*), max(claim_no) FROM claims") == [(60, 1)]


async def test_a_retried_run_comes_back_by_the_scheduler(
    parts: Parts, settings: Settings, db: Database, queue: Queue
) -> None:
    parts("scheduler")

    async def agent(ctx: Any, given: Any) -> int:
        if ctx.run.attempts < 3:
            raise ValueError("not yet")
        return int(ctx.run.attempts)

    quick = with_worker(settings, retry_base_s=0.05)
    async with working(quick, db, queue, {"it": agent}):
        run_id = await submit_one(db, queue, "it", max_attempts=3)
        assert (await ended(db, run_id))["result"] == 3
    assert [outcome for _, outcome, _ in await ledger(db, run_id)] == [
        "retry",
        "retry",
        "succeeded",
    ]


async def test_a_scheduler_that_is_killed_in_the_middle_loses_nothing(
    parts: Parts, settings: Settings, db: Database, queue: Queue
) -> None:
    """Thousands are due at once; one of two is killed while they are moved."""
    entries = {f"1.{n:08d}-0000-7000-8000-000000000000" for n in range(4000)}
    first, second = parts("scheduler"), parts("scheduler")
    await db.execute(
        b"INSERT INTO workers (worker_id, queues, agents, host, pid, version)"
        b" VALUES (gen_random_uuid(), '{\"runs\": 1}', '{}', 'h', 1, '0')"
    )
    with prompt(settings) as client:
        client.zadd("queue:runs:delayed", dict.fromkeys(entries, client.time()[0] - 1))
        await queue.wake("queue:runs")
        first.kill()
        await eventually(lambda: client.zcard("queue:runs:delayed") == 0)
        found = client.lrange("queue:runs", 0, -1)
    assert len(found) == len(entries) == len(set(found))
    assert second.alive


async def test_postgres_being_away_does_not_stop_the_clock(
    fragile: Fragile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It only tells which queues there are; those that are known go on."""
    monkeypatch.setattr(due, "QUEUES_S", 0.05)
    db, queue = Database(fragile.settings.database), Queue(fragile.settings.redis)
    await db.open()
    await submit(db, queue, new_run(delay_s=60))
    moving = asyncio.create_task(DueMover(db, queue, Stop()).run())
    try:
        with prompt(fragile.settings) as client:
            client.zadd("queue:runs:delayed", {"1.first": client.time()[0] - 1})
            await eventually(lambda: client.lrange("queue:runs", 0, -1) == ["1.first"])
            fragile.postgres.kill()
            for n in range(3):
                client.zadd("queue:runs:delayed", {f"1.{n}": client.time()[0] - 1})
                await eventually(lambda: client.zcard("queue:runs:delayed") == 1, 3)
                assert client.lindex("queue:runs", -1) == f"1.{n}"
    finally:
        moving.cancel()
        await queue.close()
        await db.close()
