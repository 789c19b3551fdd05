"""What the clock starts: how late delayed entries and ticks are, and how many ticks a second one
scheduler fires with ten thousand schedules.

One scheduler process and its servers, nothing else. An entry's lateness is from its due time to
the moment at which somebody who waits at the list has it, both by the clock of this machine; a
tick's is the database's own.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.measure import Measured, figure, percentile
from bench.work import opened
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Entry
from researchcopilot.dev.stack import Plan, Stack
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

RATES = (1, 100, 1000)
SECONDS = 10
IDLE = 60
SCHEDULES = 10_000
TICK_SECONDS = 10.0


def measure(rounds: int) -> list[Measured]:
    found = asyncio.run(_delays())
    return [*found, *asyncio.run(_ticks(rounds))]


@asynccontextmanager
async def _scheduler() -> AsyncIterator[tuple[Stack, Database, Queue]]:
    with Stack(Plan(environ={"RC_LOG_LEVEL": "warning"})) as stack:
        stack.start_servers()
        stack.command("migrate")
        stack.add("scheduler", "scheduler").start()
        async with opened(stack.settings) as (db, queue):
            yield stack, db, queue


# Delayed entries


async def _delays() -> list[Measured]:
    found: list[Measured] = []
    async with _scheduler() as (_, _, queue):
        idle = [await _lateness(queue, [random.uniform(0.3, 0.6)]) for _ in range(IDLE)]
        found += _figures("delayed entry, idle", [late for one in idle for late in one])
        for rate in RATES:
            many = rate * SECONDS
            waits = [1.0 + number / rate for number in range(many)]
            found += _figures(f"delayed entry, {rate} due a second", await _lateness(queue, waits))
    return found


def _figures(name: str, late_ms: list[float]) -> list[Measured]:
    return [
        figure(f"{name}, late p50", "ms", [percentile(late_ms, 0.5)], f"{len(late_ms)} entries"),
        figure(f"{name}, late p99", "ms", [percentile(late_ms, 0.99)]),
    ]


async def _lateness(queue: Queue, waits: list[float]) -> list[float]:
    """Milliseconds of each entry, from its due time until it is taken."""
    entries = [Entry(1, new_id()) for _ in waits]
    started = time.monotonic()
    pairs = list(zip(entries, waits, strict=True))
    for start in range(0, len(pairs), 1000):
        spent = time.monotonic() - started
        await queue.delay("runs", [(e, wait - spent) for e, wait in pairs[start : start + 1000]])
    [scores] = await queue.all([("ZRANGE", queue.delayed("runs"), "0", "-1", "WITHSCORES")])
    due = {text: float(score) for text, score in _twos(scores)}
    late: list[float] = []
    worker = new_id()
    while len(late) < len(entries):
        first = await queue.wait("runs", worker)
        if first is None:
            continue
        taken = [first, *await queue.take("runs", worker, 1000)]
        now = time.time()
        late += [(now - due[text]) * 1000 for text in taken]
        await queue.ack("runs", worker, taken)
    return late


def _twos(answer: list[Any]) -> list[tuple[str, float]]:
    """Pairs, as RESP3 gives them or, flat, RESP2."""
    if answer and isinstance(answer[0], str):
        return list(zip(answer[::2], answer[1::2], strict=True))
    return [(text, score) for text, score in answer]


# Ticks


async def _ticks(rounds: int) -> list[Measured]:
    async with _scheduler() as (_, db, _):
        await _make(db)
        rates = [await _at_once(db) for _ in range(rounds)]
        late = await _in_turn(db)
    return [
        figure(f"ticks, {SCHEDULES:,} schedules due at once", "ticks/s", rates),
        figure(f"ticks, {SCHEDULES:,} schedules of {TICK_SECONDS:g} s, late p50", "ms",
               [percentile(late, 0.5)], f"{len(late) / SECONDS:,.0f} ticks/s"),
        figure(f"ticks, {SCHEDULES:,} schedules of {TICK_SECONDS:g} s, late p99", "ms",
               [percentile(late, 0.99)]),
    ]  # fmt: skip


async def _make(db: Database) -> None:
    """Half cron lines in a zone, half intervals; none is due yet."""
    await db.execute(
        b"INSERT INTO schedules (schedule_id, workspace_id, name, system, session_id, agent, input,"
        b" cron, timezone, interval_s, anchor, misfire, overlap, next_tick, created_at, updated_at)"
        b" SELECT gen_random_uuid(), 1, 's' || n, false, gen_random_uuid(), 'echo', '\"x\"',"
        b" CASE WHEN n %% 2 = 0 THEN '0 8 * * *' END, 'Europe/Berlin',"
        b" CASE WHEN n %% 2 = 1 THEN 86400 END, now(), 'latest', 'allow', now() + interval '1 day',"
        b" now(), now() FROM generate_series(1, %(n)s) n",
        {"n": SCHEDULES},
    )
    await db.execute(b"ANALYZE schedules")


async def _at_once(db: Database) -> float:
    """All are due in one moment: ticks a second until the last is fired."""
    await db.execute(b"TRUNCATE ticks, runs, messages, sessions CASCADE")
    await db.execute(
        b"UPDATE schedules SET next_tick = date_trunc('second', clock_timestamp())"
        b" + interval '2 seconds' WHERE NOT system"
    )
    for _ in range(600):
        if (await db.rows(b"SELECT count(*) FROM ticks"))[0][0] >= SCHEDULES:
            break
        await asyncio.sleep(0.1)
    [(seconds,)] = await db.rows(
        b"SELECT extract(epoch FROM max(fired_at) - min(tick))::float8 FROM ticks"
    )
    return SCHEDULES / float(seconds)


async def _in_turn(db: Database) -> list[float]:
    """Each fires every ten seconds, one after the other: how late, after a first round."""
    await db.execute(b"TRUNCATE ticks, runs, messages, sessions CASCADE")
    await db.execute(
        b"UPDATE schedules SET cron = NULL, interval_s = %(s)s, anchor = a, next_tick = a FROM"
        b" (SELECT schedule_id AS i, clock_timestamp() + make_interval(secs => 3 + %(s)s *"
        b" (row_number() OVER ()) / %(n)s) AS a FROM schedules) x"
        b" WHERE x.i = schedule_id AND NOT system",
        {"s": TICK_SECONDS, "n": SCHEDULES},
    )
    await asyncio.sleep(3 + TICK_SECONDS + SECONDS)
    rows = await db.rows(
        b"SELECT extract(epoch FROM fired_at - tick)::float8 * 1000 FROM ticks"
        b" WHERE tick > (SELECT max(tick) FROM ticks) - make_interval(secs => %(s)s)",
        {"s": SECONDS},
    )
    return [row[0] for row in rows]
