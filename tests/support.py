"""What several rooms of tests share: waiting for a condition, runs and their rows, and a worker
inside the test's own process.

Nothing here sleeps for a time that was guessed: `eventually` looks until it is true, and says what
it saw last when its limit is over.
"""

import asyncio
import inspect
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis
from prometheus_client import REGISTRY

from researchcopilot.agents.contract import Context
from researchcopilot.agents.registry import make_agent
from researchcopilot.core.errors import Unavailable
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import NewRun, Submission, Verdict, WorkerInfo
from researchcopilot.core.settings import Settings
from researchcopilot.runtime.loop import Stop
from researchcopilot.storage import moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.submit import Submitter
from researchcopilot.worker.worker import Worker

ENDED = ("succeeded", "failed", "cancelled")


async def eventually(look: Callable[[], Any], within: float = 10.0) -> Any:
    """The first true value of `look()` (or of what it awaits)."""
    end = time.monotonic() + within
    while True:
        value = look()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {within:g} s; last seen: {value!r}")
        await asyncio.sleep(0.01)


# Runs


def new_run(session_id: str | None = None, **fields: Any) -> NewRun:
    """A run of workspace 1 in queue `runs`; in a session of its own unless one is given."""
    fields = {"agent": "echo", "queue": "runs", "input": "hello", "workspace_id": 1, **fields}
    return NewRun(run_id=new_id(), session_id=session_id or new_id(), **fields)


async def submit(db: Database, queue: Queue, *runs: NewRun) -> list[str]:
    """Submitted and pushed, all in one commit."""
    submitter = Submitter(db, queue)
    done = await submitter(Submission(runs))
    await submitter.close()
    return list(done.run_ids)


async def submit_one(db: Database, queue: Queue, agent: str = "echo", **fields: Any) -> str:
    [run_id] = await submit(db, queue, new_run(agent=agent, **fields))
    return run_id


async def row(db: Database, run_id: str) -> dict[str, Any]:
    """The run as it stands in Postgres."""
    found = await db.one(b"SELECT * FROM runs WHERE run_id = %(r)s", {"r": run_id})
    assert found is not None, f"no run {run_id}"
    return found


async def ended(db: Database, run_id: str, within: float = 10.0) -> dict[str, Any]:
    """The run once it is terminal."""

    async def look() -> dict[str, Any] | None:
        found = await row(db, run_id)
        return found if found["status"] in ENDED else None

    try:
        result: dict[str, Any] = await eventually(look, within)
    except AssertionError as error:
        raise AssertionError(f"it has not ended: {await row(db, run_id)}") from error
    return result


async def running(db: Database, run_id: str, claim_no: int = 1) -> dict[str, Any]:
    """The run once that claim executes."""

    async def look() -> dict[str, Any] | None:
        found = await row(db, run_id)
        return found if (found["status"], found["claim_no"]) == ("running", claim_no) else None

    result: dict[str, Any] = await eventually(look)
    return result


async def status_is(db: Database, run_id: str, *wanted: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        found = await row(db, run_id)
        return found if found["status"] in wanted else None

    result: dict[str, Any] = await eventually(look)
    return result


async def claim(
    db: Database, run_ids: Sequence[str], *, worker_id: str, lease_s: float = 60.0
) -> dict[str, Verdict]:
    """Claimed as a worker does it, in one call."""
    verdicts = await moves.claim(
        db, run_ids, worker_id=worker_id, claim_id=new_id(), lease_s=lease_s
    )
    return {verdict.run_id: verdict for verdict in verdicts}


async def ledger(db: Database, run_id: str) -> list[tuple[int, str | None, bool]]:
    """(claim_no, outcome, closed by its worker) of each execution."""
    rows = await db.rows(
        b"SELECT claim_no, outcome, by_worker FROM claims WHERE run_id = %(r)s ORDER BY claim_no",
        {"r": run_id},
    )
    return [(row[0], row[1], row[2]) for row in rows]


async def waits_in(db: Database, call: str) -> int:
    """How many statements that contain this wait for a lock."""
    [(number,)] = await db.rows(
        b"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        b" AND wait_event_type = 'Lock' AND query LIKE '%%' || %(call)s || '%%'",
        {"call": call},
    )
    return int(number)


# Redis as a person at its prompt sees it


@contextmanager
def prompt(settings: Settings) -> Iterator[Any]:
    """A plain client, for what no verb of ours does: entries put there or taken away by hand."""
    with redis.Redis.from_url(settings.redis.url, decode_responses=True) as client:
        yield client


async def waiting(queue: Queue, n: int) -> bool:
    return (await queue.depths("runs")).waiting == n


async def in_no_hands(queue: Queue) -> bool:
    return (await queue.depths("runs")).processing == 0


async def delayed(queue: Queue) -> int:
    return (await queue.depths("runs")).delayed


async def empty(queue: Queue, *names: str) -> bool:
    """No entry waits, is in hands, or is delayed. A probe may pass. False while Redis is away."""
    for name in names or ("runs",):
        try:
            depths = await queue.depths(name)
        except Unavailable:
            return False
        if depths.processing or depths.delayed or depths.waiting > 1:
            return False
    return True


async def somebody_listens(queue: Queue, worker_id: str) -> bool:
    """Has that worker subscribed to its cancellations?"""
    [[_, number]] = await queue.all([("PUBSUB", "NUMSUB", queue.key(f"cancel:{worker_id}"))])
    return bool(number)


# Agents


async def echo(ctx: Context, given: Any) -> Any:
    return given


class Gate:
    """An agent that waits to be let through; it tells who is inside, in order."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.open = asyncio.Event()

    async def __call__(self, ctx: Context, given: Any) -> Any:
        self.inside.append(ctx.run.run_id)
        await self.open.wait()


def returns(value: Any) -> Callable[..., Any]:
    async def agent(ctx: Context, given: Any) -> Any:
        return value

    return agent


# A worker in this process


def metric(name: str, **labels: str) -> float:
    """What a counter of this process stands at."""
    return REGISTRY.get_sample_value(name, labels) or 0.0


def with_worker(settings: Settings, **fields: Any) -> Settings:
    """The same settings, but these of the worker."""
    return replace(settings, worker=replace(settings.worker, **fields))


def with_recovery(settings: Settings, **fields: Any) -> Settings:
    return replace(settings, recovery=replace(settings.recovery, **fields))


@asynccontextmanager
async def working(
    settings: Settings,
    db: Database,
    queue: Queue,
    agents: Mapping[str, Callable[..., Any]],
    *,
    worker_id: str | None = None,
    queues: Mapping[str, int] | None = None,
) -> AsyncIterator[Worker]:
    """A worker over this test's servers, with these functions as its agents; at the end it is
    told twice to stop."""
    made = {name: make_agent(name, fn) for name, fn in agents.items()}
    info = WorkerInfo(
        worker_id or new_id(),
        dict(queues or {"runs": 4}),
        tuple(agent.info for agent in made.values()),
        host="tests",
        pid=os.getpid(),
        version="0",
    )
    with tempfile.TemporaryDirectory() as folder:
        stop = Stop()
        worker = Worker(settings, info, made, db=db, redis=queue, cache_dir=Path(folder), stop=stop)
        task = asyncio.create_task(worker.run())
        try:
            await eventually(lambda: worker.registered or task.done())
            yield worker
        finally:
            stop()
            stop()
            _end_the_wait(settings, info)
            await asyncio.wait_for(task, 30)


def _end_the_wait(settings: Settings, info: WorkerInfo) -> None:
    """Give BLMOVE something, so that the worker need not wait its second out."""
    with prompt(settings) as client:
        for name in info.queues:
            client.rpush(f"{settings.redis.prefix}queue:{name}", "the test has ended")


async def run_agent(
    settings: Settings, db: Database, queue: Queue, fn: Callable[..., Any], **fields: Any
) -> dict[str, Any]:
    """One run of it, to its end."""
    async with working(settings, db, queue, {"it": fn}):
        return await ended(db, await submit_one(db, queue, "it", **fields))
