"""Recovery: what a dead worker costs, and what a wiped Redis costs when very much is queued.

`kill`: a worker that holds a full hand of runs is killed with SIGKILL; from that moment until each
run is queued again, and until the other worker has claimed it. With the product's own lease and
sweeps, so the figures are to be read beside them. `deep`: 100,000 and 1,000,000 queued runs; how
long Redis takes to be written anew after FLUSHALL, and what one round of each duty of the janitor
costs there. Times of the kill are the database's own.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from bench.measure import Measured, figure, percentile
from bench.work import echo, fill_rows, opened
from researchcopilot.core.models import Submission
from researchcopilot.dev.parts import Part
from researchcopilot.dev.stack import Plan, Stack
from researchcopilot.janitor.main import duties
from researchcopilot.runtime.health import Health
from researchcopilot.runtime.loop import Stop
from researchcopilot.service import Service
from researchcopilot.storage import recovery
from researchcopilot.storage.db import Database
from researchcopilot.storage.lock import Locks
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.returning import Returning
from researchcopilot.storage.submit import Submitter

HAND = 64
DEPTHS = (100_000, 1_000_000)
SLOW = ("retention", "expire_memories", "workers")  # not of a sweep
QUIET = {"RC_LOG_LEVEL": "warning", "RC_WORKER_QUEUES": f"runs={HAND},system=1"}


def measure(rounds: int) -> list[Measured]:
    return [*_killed(rounds), *(found for depth in DEPTHS for found in _deep(depth, rounds))]


def _killed(rounds: int) -> list[Measured]:
    with Stack(Plan(environ=QUIET)) as stack:
        stack.start_servers()
        stack.command("migrate")
        janitor = stack.add("janitor", "janitor")
        janitor.launch()
        queued, claimed = asyncio.run(_kill_each(stack, rounds))
        settings = stack.settings.recovery
    note = f"{len(queued)} runs of {rounds} workers; lease {settings.lease_s:g} s, sweep each " \
           f"{settings.sweep_s:g} s"  # fmt: skip
    return [
        figure("kill -9 to queued again, p50", "s", [percentile(queued, 0.5)], note),
        figure("kill -9 to queued again, p99", "s", [percentile(queued, 0.99)]),
        figure("kill -9 to claimed again, p50", "s", [percentile(claimed, 0.5)]),
        figure("kill -9 to claimed again, p99", "s", [percentile(claimed, 0.99)]),
    ]


async def _kill_each(stack: Stack, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds to queued and to claimed of each run that a killed worker held."""
    queued: list[float] = []
    claimed: list[float] = []
    async with opened(stack.settings) as (db, queue):
        for number in range(rounds):
            victim = _worker(stack, f"victim {number}")
            await _submit_slow(db, queue)
            await _until(lambda: _held(db), HAND)
            rescuer = _worker(stack, f"rescuer {number}")
            # Not always at the same point between two renewals.
            await asyncio.sleep(number * 5.0 / rounds)
            [(killed_at,)] = await db.rows(b"SELECT clock_timestamp()")
            victim.kill()
            await _until(lambda: _held(db, claim_no=2), HAND)
            rows = await db.rows(
                b"SELECT extract(epoch FROM c.finished_at - %(t)s)::float8,"
                b" extract(epoch FROM d.started_at - %(t)s)::float8"
                b" FROM claims c JOIN claims d USING (run_id) JOIN runs r USING (run_id)"
                b" WHERE c.claim_no = 1 AND d.claim_no = 2 AND r.status = 'running'",
                {"t": killed_at},
            )
            queued += [row[0] for row in rows]
            claimed += [row[1] for row in rows]
            rescuer.kill()
            await db.execute(b"TRUNCATE runs, sessions CASCADE")
            await queue.clear(["runs"])
    return queued, claimed


def _worker(stack: Stack, name: str) -> Part:
    worker = stack.add(name, "worker")
    worker.launch()
    worker.wait_ready()
    return worker


async def _submit_slow(db: Database, queue: Queue) -> None:
    submitter = Submitter(db, queue)
    runs = tuple(replace(echo(), input={"sleep": 600}) for _ in range(HAND))
    await submitter(Submission(runs))
    await submitter.close()


async def _held(db: Database, claim_no: int = 1) -> int:
    [(held,)] = await db.rows(
        b"SELECT count(*) FROM runs WHERE status = 'running' AND claim_no = %(n)s", {"n": claim_no}
    )
    return int(held)


async def _until(count: Callable[[], Awaitable[int]], wanted: int, limit_s: float = 120.0) -> None:
    give_up = time.monotonic() + limit_s
    while (seen := await count()) < wanted:
        if time.monotonic() > give_up:
            raise TimeoutError(f"{seen} of {wanted} after {limit_s:g} s")
        await asyncio.sleep(0.05)


def _deep(depth: int, rounds: int) -> list[Measured]:
    with Stack(Plan(environ=QUIET)) as stack:
        stack.start_servers()
        stack.command("migrate")
        return asyncio.run(_at_depth(stack, depth, rounds))


async def _at_depth(stack: Stack, depth: int, rounds: int) -> list[Measured]:
    async with opened(stack.settings) as (db, queue):
        await fill_rows(db, depth)
        rebuilt = [await _rebuilt(db, queue, depth) for _ in range(rounds)]
        async with _janitor(stack, db, queue) as each:
            costs = {name: [await _timed(duty) for _ in range(2 * rounds + 1)][1:]
                     for name, duty in each.items()}  # fmt: skip
    total = sum(percentile(values, 0.5) for values in costs.values())
    return [
        figure(f"Redis written anew after FLUSHALL, {depth:,} queued", "s", rebuilt),
        *(figure(f"duty {name}, {depth:,} queued", "ms", values) for name, values in costs.items()),
        figure(f"one round of all these duties, {depth:,} queued", "ms", [total]),
    ]


async def _rebuilt(db: Database, queue: Queue, depth: int) -> float:
    """Seconds to write Redis anew."""
    await queue.clear(["runs", "system"])
    started = time.monotonic()
    entries = await recovery.rebuild(db, queue)
    if entries != depth:
        raise RuntimeError(f"{entries} entries were written, {depth} runs are queued")
    return time.monotonic() - started


@asynccontextmanager
async def _janitor(
    stack: Stack, db: Database, queue: Queue
) -> AsyncIterator[dict[str, Callable[[], Awaitable[object]]]]:
    """The duties of a janitor that sweeps, by name."""
    stop, locks = Stop(), Locks(stack.settings.redis)
    service = Service(stack.settings, db, queue, Health(), stop)
    returning = Returning(queue, stop, stack.settings.recovery.spread_s)
    try:
        yield {
            name: duty
            for name, _, duty in duties(service, returning, locks)
            if name not in SLOW
        }  # fmt: skip
    finally:
        await returning.close()
        await locks.close()


async def _timed(duty: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds."""
    started = time.monotonic()
    await duty()
    return (time.monotonic() - started) * 1000
