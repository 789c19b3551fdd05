"""Runs to measure with: put into Postgres and Redis through the product's own submitter."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import NewRun, Submission
from researchcopilot.core.settings import Settings
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.submit import Submitter

_PAGE = 20_000
# In a session each, as requests make them.
_ROWS = b"""
WITH made AS MATERIALIZED (
    SELECT gen_random_uuid() AS run_id, gen_random_uuid() AS session_id, n
    FROM generate_series(%(first)s::int, %(first)s::int + %(n)s - 1) n
), opened AS (
    INSERT INTO sessions (session_id, workspace_id) SELECT session_id, 1 FROM made
)
INSERT INTO runs (run_id, workspace_id, session_id, agent, queue, serial, status, input,
                  max_attempts, created_at, run_at, ready_at, deadline)
SELECT run_id, 1, session_id, 'echo', 'runs', true, 'queued', '"x"', 3, now(), now(),
       now() + n * interval '1 us', now() + interval '1 day'
FROM made ORDER BY n
"""


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[tuple[Database, Queue]]:
    db, queue = Database(settings.database), Queue(settings.redis)
    await db.open()
    try:
        yield db, queue
    finally:
        await db.close()
        await queue.close()


def echo(queue: str = "runs") -> NewRun:
    return NewRun(
        run_id=new_id(), workspace_id=1, agent="echo", queue=queue, input="x", session_id=new_id()
    )


async def fill(db: Database, queue: Queue, runs: int, batch: int = 250) -> None:
    """Submit so many runs of the echo agent, each in a session of its own."""
    submitter = Submitter(db, queue)
    members = [Submission(tuple(echo() for _ in range(batch))) for _ in range(runs // batch)]
    for start in range(0, len(members), 8):
        await asyncio.gather(*(submitter(member) for member in members[start : start + 8]))
    await submitter.close()


async def fill_rows(db: Database, runs: int) -> None:
    """So many queued runs as bare rows: for depths that would take minutes to submit. No hints:
    `recovery.rebuild` writes those."""
    for first in range(0, runs, _PAGE):
        await db.execute(_ROWS, {"first": first, "n": min(_PAGE, runs - first)})
    await db.execute(b"ANALYZE runs")


async def ended(db: Database) -> tuple[int, float]:
    """How many runs are terminal, and the seconds from the first claim to the last finish."""
    row = await db.one(
        b"SELECT count(*) AS n, extract(epoch FROM max(finished_at) - min(started_at))::float8 AS s"
        b" FROM runs WHERE finished_at IS NOT NULL"
    )
    assert row is not None
    return int(row["n"]), float(row["s"] or 0.0)


async def wait_ended(db: Database, runs: int, limit_s: float = 300.0) -> float:
    """Wait until so many runs have ended; seconds from the first claim to the last finish."""
    give_up = time.monotonic() + limit_s
    while True:
        count, seconds = await ended(db)
        if count >= runs:
            return seconds
        if time.monotonic() > give_up:
            raise TimeoutError(f"{count} of {runs} runs had ended after {limit_s:g} s")
        await asyncio.sleep(0.1)
