"""A million queued: accept and drain beside those of an empty system, and what it weighs.

Both are measured in one run, one after the other: the ratio is what counts. Redis is asked for its
`used_memory` before and after, so the bytes of a run hold its share of everything. The worker that
is weighed has nothing to do and has loaded no index.
"""

import asyncio
import time
from collections.abc import Sequence

import redis

from bench.accept import both_apis, load
from bench.measure import Measured, figure, resident_mb
from bench.work import fill, fill_rows, opened
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Entry
from researchcopilot.dev.stack import Plan, Stack
from researchcopilot.storage import recovery
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

MILLION = 1_000_000
DELAYED = 100_000
DRAINED = 20_000
ENVIRON = {"RC_LOG_LEVEL": "warning", "RC_WORKER_QUEUES": "runs=256,system=1"}


def measure(rounds: int) -> list[Measured]:
    """One round whatever is asked for: each takes minutes."""
    empty, full = _stage(0), _stage(MILLION)
    accept, drain = full["accept"] / empty["accept"], full["drain"] / empty["drain"]
    return [
        figure("accept, empty", "runs/s", [empty["accept"]]),
        figure("accept, 1,000,000 queued", "runs/s", [full["accept"]]),
        figure("accept at a million against empty", "ratio", [accept]),
        figure("drain, empty", "runs/s", [empty["drain"]], f"the first {DRAINED:,}"),
        figure("drain, 1,000,000 queued", "runs/s", [full["drain"]]),
        figure("drain at a million against empty", "ratio", [drain]),
        figure("Redis, a waiting run", "bytes", [full["waiting"]]),
        figure("Redis, a delayed run", "bytes", [full["delayed"]]),
        figure("memory of an idle worker", "MB", [empty["idle"]], "resident, no index loaded"),
    ]


def _stage(queued: int) -> dict[str, float]:
    with Stack(Plan(workers=1, environ=ENVIRON)) as stack:
        urls, key = both_apis(stack)
        found = {"idle": _idle(stack)}
        found |= asyncio.run(_fill(stack, queued))
        found["accept"] = load(urls, key, "/v1/runs", {"agent": "echo", "input": "x"})["rate"]
        found["drain"] = asyncio.run(_drain(stack))
    return found


def _idle(stack: Stack) -> float:
    """Resident MB of a worker that has been ready for a while."""
    worker = stack.add("idle", "worker")
    worker.launch()
    worker.wait_ready()
    time.sleep(3)
    resident = resident_mb(worker.pid)
    worker.stop()
    return resident


async def _fill(stack: Stack, queued: int) -> dict[str, float]:
    """Rows and hints; bytes of Redis for each of them."""
    if not queued:
        return {}
    async with opened(stack.settings) as (db, queue):
        await fill_rows(db, queued)
        before = _used(stack)
        await recovery.rebuild(db, queue)
        waiting = (_used(stack) - before) / queued
        delayed = await _weigh_delayed(stack, queue)
    return {"waiting": waiting, "delayed": delayed}


async def _weigh_delayed(stack: Stack, queue: Queue) -> float:
    before = _used(stack)
    entries = [Entry(1, new_id()) for _ in range(DELAYED)]
    for start in range(0, DELAYED, 1000):
        await queue.delay("weighed", [(entry, 86_400.0) for entry in entries[start : start + 1000]])
    bytes_each = (_used(stack) - before) / DELAYED
    await queue.clear(["weighed"])
    return bytes_each


def _used(stack: Stack) -> float:
    with redis.Redis.from_url(stack.valkey.url) as client:
        return float(client.info("memory")["used_memory"])


async def _drain(stack: Stack) -> float:
    """Runs a second, from the first claim to the end of the first so many."""
    async with opened(stack.settings) as (db, queue):
        await fill(db, queue, DRAINED)
        stack.add("drainer", "worker").launch()
        give_up = time.monotonic() + 120
        while (ends := await _first(db))[0] < DRAINED:
            if time.monotonic() > give_up:
                raise TimeoutError(f"{ends[0]} runs had ended after 120 s")
            await asyncio.sleep(0.2)
    return DRAINED / float(ends[1])


async def _first(db: Database) -> Sequence[float]:
    [row] = await db.rows(
        b"SELECT count(*), extract(epoch FROM max(finished_at) - min(started_at))::float8 FROM ("
        b" SELECT finished_at, started_at FROM runs WHERE finished_at IS NOT NULL"
        b" ORDER BY finished_at LIMIT %(n)s) r",
        {"n": DRAINED},
    )
    return row
