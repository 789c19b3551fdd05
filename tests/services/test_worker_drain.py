"""SIGTERM: a worker stops taking, lets its runs end within RC_DRAIN_SECONDS, releases the rest to
the head of their queue, refunded, and exits 0, whoever of its agents or servers does not answer."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
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
    row,
    running,
    submit,
    submit_one,
    with_worker,
    working,
)

from researchcopilot.core import settings as core_settings
from researchcopilot.core.settings import Settings
from researchcopilot.dev.parts import Part
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


async def left(part: Part, within: float) -> int:
    """Its exit code, once it has ended."""
    await eventually(lambda: not part.alive, within)
    code = part.child.wait(1)
    assert code is not None
    return code


async def began(folder: Path, run_id: str) -> None:
    await eventually((folder / f"began-{run_id}").exists)


async def test_runs_end_while_it_drains_and_nothing_more_is_taken(
    workers: Parts, settings: Settings, db: Database, queue: Queue, tmp_path: Path
) -> None:
    worker = workers("worker", RC_DRAIN_SECONDS="20")
    run_id = await submit_one(db, queue, "sleep", input=1.6)
    await began(tmp_path, run_id)
    worker.child.ask()
    await eventually(lambda: "draining" in worker.child.tail())
    late = await submit_one(db, queue, "sleep", input=0)
    assert await left(worker, 10) == 0
    assert (await row(db, run_id))["status"] == "succeeded"
    assert await ledger(db, run_id) == [(1, "succeeded", True)]
    # Also what its last BLMOVE brought is untouched, back in its place.
    assert (await row(db, late))["claim_no"] == 0
    with prompt(settings) as client:
        assert client.lrange("queue:runs", 0, -1) == [f"1.{late}"]


async def test_what_does_not_end_in_time_is_released_and_goes_on_elsewhere(
    workers: Parts, settings: Settings, db: Database, queue: Queue
) -> None:
    """Stubborn agents, threads that nothing stops and a pool of threads do not hold it up."""
    worker = workers("worker", RC_DRAIN_SECONDS="0.2")
    agents = ["sleep", "sleep_in_thread", "stubborn", "napping_pool"]
    ids = await submit(db, queue, *(new_run(agent=agent, input=60) for agent in agents))
    for run_id in ids:
        await running(db, run_id)
    worker.child.ask()
    assert await left(worker, 15) == 0
    for run_id in ids:
        found = await row(db, run_id)
        assert (found["status"], found["attempts"], found["claim_no"]) == ("queued", 0, 1)
        assert await ledger(db, run_id) == [(1, "release", True)]
    with prompt(settings) as client:
        assert sorted(client.lrange("queue:runs", 0, -1)) == sorted(f"1.{id_}" for id_ in ids)
    assert await db.rows(b"SELECT stopped_at IS NOT NULL FROM workers") == [(True,)]


async def test_a_second_signal_releases_at_once(
    workers: Parts, db: Database, queue: Queue, tmp_path: Path
) -> None:
    worker = workers("worker", RC_DRAIN_SECONDS="600")
    run_id = await submit_one(db, queue, "sleep", input=60)
    await began(tmp_path, run_id)
    worker.child.ask(signal.SIGTERM)
    await eventually(lambda: "draining" in worker.child.tail())
    worker.child.ask(signal.SIGINT)
    assert await left(worker, 8) == 0
    assert (await row(db, run_id))["status"] == "queued"


PARTS = ("worker", "janitor", "scheduler")


async def all_left(started: Sequence[Part], within: float) -> None:
    """All of them are asked at once; each exits 0, and in time."""
    for part in started:
        part.child.ask()
    end = time.monotonic() + within
    for part in started:
        assert await left(part, end - time.monotonic()) == 0, part.last_words()


async def test_idle_parts_are_gone_in_about_a_second(parts: Parts) -> None:
    started = [parts.launch(name) for name in PARTS]
    for part in started:
        part.wait_ready()
    await all_left(started, 4)


async def test_parts_that_wait_for_their_servers_can_be_told_to_stop(parts: Parts) -> None:
    """Nothing listens there: they say so, and wait; they must not wait out their patience first."""
    nobody = {
        "RC_DATABASE_URL": "postgresql://postgres@127.0.0.1:9/none",
        "RC_REDIS_URL": "redis://127.0.0.1:9/0",
    }
    started = [parts.launch(name, **nobody) for name in PARTS]
    for part in started:
        await eventually(partial(waits_for_schema, part))
    await all_left(started, 6)


def waits_for_schema(part: Part) -> bool:
    return (part.complaint() or "").startswith("schema")


async def test_it_stops_also_while_a_server_is_away(
    workers: Parts, fragile: Fragile, tmp_path: Path
) -> None:
    """With a run in its hands. What it cannot hand back is left to its lease and to the janitor.

    Three workers at once: Postgres goes for one, Redis for another, both for the third.
    """
    steady = workers.environment
    pairs = {
        "postgres": (fragile.environment["RC_DATABASE_URL"], steady["RC_REDIS_URL"]),
        "redis": (steady["RC_DATABASE_URL"], fragile.environment["RC_REDIS_URL"]),
        "both": (fragile.environment["RC_DATABASE_URL"], fragile.environment["RC_REDIS_URL"]),
    }
    started: dict[str, Part] = {}
    for away, (database_url, redis_url) in pairs.items():
        servers = {"RC_DATABASE_URL": database_url, "RC_REDIS_URL": redis_url}
        mine = {**servers, "RC_DRAIN_SECONDS": "0.2", "RC_WORKER_QUEUES": f"{away}=1"}
        started[away] = workers.launch("worker", **mine)
    for away, (database_url, redis_url) in pairs.items():
        started[away].wait_ready()
        servers = {"RC_DATABASE_URL": database_url, "RC_REDIS_URL": redis_url}
        async with connected({**steady, **servers}) as (db, queue):
            run = new_run(agent="sleep", input=60, queue=away)
            [run_id] = await submit(db, queue, run)
            await began(tmp_path, run_id)
    fragile.postgres.kill()
    fragile.valkey.kill()
    await all_left(list(started.values()), 25)
    fragile.start()
    found = {}
    for away, (database_url, _) in pairs.items():
        async with connected({**steady, "RC_DATABASE_URL": database_url}) as (db, _):
            rows = await db.rows(b"SELECT status FROM runs WHERE queue = %(q)s", {"q": away})
            found[away] = rows[0][0]
    assert found == {"postgres": "running", "redis": "queued", "both": "running"}


@asynccontextmanager
async def connected(environment: dict[str, str]) -> AsyncIterator[tuple[Database, Queue]]:
    settings = core_settings.load(
        {name: value for name, value in environment.items() if name.startswith("RC_")}
    )
    db, queue = Database(settings.database), Queue(settings.redis)
    await db.open()
    try:
        yield db, queue
    finally:
        await queue.close()
        await db.close()


# In this process: what a signal would do, without the cost of one more


async def test_released_runs_stand_at_the_head_in_the_order_they_came(
    settings: Settings, db: Database, queue: Queue
) -> None:
    async def sleeps(ctx: Any, given: Any) -> None:
        await asyncio.sleep(60)

    ids = await submit(db, queue, *(new_run(agent="it") for _ in range(6)))
    quick = with_worker(settings, drain_s=0.0)
    async with working(quick, db, queue, {"it": sleeps}, queues={"runs": 4}):
        for run_id in ids[:4]:
            await running(db, run_id)
    with prompt(settings) as client:
        found = client.lrange("queue:runs", 0, -1)
    assert found[:6] == [f"1.{run_id}" for run_id in ids]


async def test_a_cancelled_run_is_not_released_but_cancelled(
    settings: Settings, db: Database, queue: Queue
) -> None:
    async def sleeps(ctx: Any, given: Any) -> None:
        await asyncio.sleep(60)

    quick = with_worker(settings, drain_s=0.0)
    async with working(quick, db, queue, {"it": sleeps}):
        run_id = await submit_one(db, queue, "it")
        await running(db, run_id)
        await db.execute(b"UPDATE runs SET cancel_requested_at = clock_timestamp()")
    assert (await row(db, run_id))["status"] == "cancelled"
    await eventually(lambda: empty(queue))


async def test_an_agent_that_fails_while_it_is_stopped_is_released_all_the_same(
    settings: Settings, db: Database, queue: Queue
) -> None:
    async def fails(ctx: Any, given: Any) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise RuntimeError("its clean-up failed")

    quick = with_worker(settings, drain_s=0.0)
    async with working(quick, db, queue, {"it": fails}):
        run_id = await submit_one(db, queue, "it")
        await running(db, run_id)
    found = await row(db, run_id)
    assert (found["status"], found["attempts"]) == ("queued", 0)


async def test_what_it_returns_while_it_is_stopped_is_a_result(
    settings: Settings, db: Database, queue: Queue
) -> None:
    async def returns(ctx: Any, given: Any) -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "just in time"

    quick = with_worker(settings, drain_s=0.0)
    async with working(quick, db, queue, {"it": returns}):
        run_id = await submit_one(db, queue, "it")
        await running(db, run_id)
    assert (await ended(db, run_id))["result"] == "just in time"
