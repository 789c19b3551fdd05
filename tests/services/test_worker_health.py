"""/livez tells when a worker takes nothing any more, and not that a run is long or its hands are
full; /readyz tells that it is not registered yet, or which server is away."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.services.conftest import Fragile
from tests.support import eventually, new_run, submit, working

from researchcopilot.core.settings import Settings
from researchcopilot.runtime.health import Health
from researchcopilot.service import Service
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.worker.main import watch
from researchcopilot.worker.worker import Worker

pytestmark = pytest.mark.anyio


def impatient(settings: Settings, stale_s: float) -> Settings:
    return replace(settings, health=replace(settings.health, stale_s=stale_s))


@asynccontextmanager
async def watched(
    settings: Settings, db: Database, queue: Queue, agent: Any, slots: int = 1
) -> AsyncIterator[tuple[Worker, Health]]:
    """A worker, and its health as its process would serve it."""
    async with working(settings, db, queue, {"it": agent}, queues={"runs": slots}) as worker:
        health = Health()
        watch(Service(settings, db, queue, health, worker.stop), worker)
        yield worker, health


async def recovers(worker: Worker, health: Health) -> None:
    """As if the last take were long ago: /livez fails, until the next one succeeds."""
    worker.takers[0].beat._last -= 1000
    assert health.answer("/livez")[0] == 503
    assert await eventually(lambda: health.answer("/livez")[0] == 200)


async def test_a_long_run_and_full_hands_are_no_reason_to_restart_it(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """Nothing is taken all the while, and rightly so: having no room counts as a take."""
    free = asyncio.Event()

    async def agent(ctx: Any, given: Any) -> None:
        await free.wait()

    await submit(db, queue, *(new_run(agent="it") for _ in range(2)))
    async with watched(settings, db, queue, agent) as (worker, health):
        await eventually(lambda: not worker.takers[0].slots.free)
        for _ in range(2):
            await recovers(worker, health)
        assert not worker.takers[0].slots.free
        free.set()


async def test_an_idle_worker_lives(settings: Settings, db: Database, queue: Queue) -> None:
    """Its takes succeed although they bring nothing."""

    async def agent(ctx: Any, given: Any) -> None: ...

    async with watched(settings, db, queue, agent) as (worker, health):
        for _ in range(2):
            await recovers(worker, health)


async def test_a_take_that_hangs_is_told(fragile: Fragile) -> None:
    """Redis neither answers nor refuses. When it does again, all is well again."""

    async def agent(ctx: Any, given: Any) -> None: ...

    settings = impatient(fragile.settings, 1.3)
    db, queue = Database(settings.database), Queue(settings.redis)
    await db.open()
    try:
        async with watched(settings, db, queue, agent) as (_, health):
            fragile.valkey.child.send(signal.SIGSTOP)
            try:
                status, _, words = await eventually(lambda: failing(health, "/livez"))
                assert (status, b"take runs" in words, b"no take for" in words) == (503, True, True)
                _, _, words = await eventually(lambda: failing(health, "/readyz"))
                assert b"redis: Redis does not answer\n" in words
            finally:
                fragile.valkey.child.send(signal.SIGCONT)
            await eventually(lambda: health.answer("/livez")[0] == 200)
            await eventually(lambda: health.answer("/readyz")[0] == 200)
    finally:
        await queue.close()
        await db.close()


def failing(health: Health, path: str) -> tuple[int, str, bytes] | None:
    answer = health.answer(path)
    return answer if answer[0] != 200 else None


async def test_it_is_ready_once_it_is_registered_and_both_servers_answer(
    settings: Settings, db: Database, queue: Queue
) -> None:
    async def agent(ctx: Any, given: Any) -> None: ...

    async with watched(settings, db, queue, agent) as (worker, health):
        await eventually(lambda: health.answer("/readyz")[0] == 200)
        worker.registered = False
        assert health.answer("/readyz")[::2] == (503, b"registered: not yet\n")
        worker.registered = True
        worker.renewal.renewed._last -= 1000
        assert health.answer("/readyz")[::2] == (503, b"leases: Postgres does not renew\n")
        await eventually(lambda: health.answer("/readyz")[0] == 200)
