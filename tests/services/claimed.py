"""A claimed run with the real Context of a worker, for tests of agents without a worker around."""

import asyncio
import math
from pathlib import Path
from typing import Any

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Claim, NewRun, Outcome, Submission
from researchcopilot.core.text import dumps
from researchcopilot.storage import moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.lock import Locks
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.submit import Submitter
from researchcopilot.worker.context import WorkerContext
from researchcopilot.worker.emitter import Emitter
from researchcopilot.worker.hands import Hand

WORKER = new_id()
_locks: list[Locks] = []  # of the contexts of a test; its `queue` closes them


async def submit(db: Database, queue: Queue, agent: str, value: Any) -> str:
    """A parallel run of a session of its own; its id."""
    submitter = Submitter(db, queue)
    run = NewRun(new_id(), 1, agent, "runs", value, new_id(), serial=False)
    try:
        return (await submitter(Submission((run,)))).run_ids[0]
    finally:
        await submitter.close()


async def claim(db: Database, run_id: str) -> Claim:
    [verdict] = await moves.claim(db, [run_id], worker_id=WORKER, claim_id=new_id(), lease_s=600)
    assert verdict.claim is not None, verdict
    return verdict.claim


def context(claimed: Claim, db: Database, queue: Queue, cache_dir: Path) -> WorkerContext:
    hand = Hand(claimed, "", math.inf, asyncio.get_running_loop().create_future())
    _locks.append(Locks(queue.settings, db))
    return WorkerContext(hand, db, _locks[-1], Emitter(queue), cache_dir, 600)


async def close_locks() -> None:
    while _locks:
        await _locks.pop().close()


async def finish(
    db: Database,
    claimed: Claim,
    kind: str,
    result: Any = None,
    error: dict[str, str] | None = None,
) -> None:
    encoded = None if result is None else dumps(result)
    outcome = Outcome(claimed.run_id, claimed.claim_no, WORKER, kind, encoded, error)
    await moves.finish(db, WORKER, [outcome])


async def new_context(
    db: Database, queue: Queue, cache_dir: Path, agent: str = "research", value: Any = "why?"
) -> WorkerContext:
    """Submitted, claimed, and ready to be given to an agent."""
    claimed = await claim(db, await submit(db, queue, agent, value))
    return context(claimed, db, queue, cache_dir)
