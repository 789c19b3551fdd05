"""Duty: what a dead worker holds in its processing lists is moved by verdict.

Dead by Postgres: it said goodbye, or its row was not renewed for two leases. A worker that was only
stopped and comes back finds its entries gone and its claims judged anew: nothing runs twice.
"""

import logging
from collections.abc import Sequence

from researchcopilot.core.models import Entry
from researchcopilot.core.settings import RecoverySettings
from researchcopilot.janitor.metrics import MOVED
from researchcopilot.storage import recovery, workers
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue, parse_entry, parse_probe

log = logging.getLogger(__name__)


async def clear_dead(db: Database, redis: Queue, settings: RecoverySettings) -> None:
    dead = await workers.dead_workers(db, stale_s=2 * settings.lease_s)
    hands = [(queue, worker_id) for worker_id, queues in dead for queue in queues]
    if not hands:
        return
    held = await redis.hold_anything(hands)
    for (queue, worker_id), full in zip(hands, held, strict=True):
        if full:
            await _move(db, redis, queue, worker_id)
    await redis.leave(*(worker_id for worker_id, _ in dead))


async def _move(db: Database, redis: Queue, queue: str, worker_id: str) -> None:
    texts = await redis.in_hands(queue, worker_id)
    entries = {text: entry for text in texts if (entry := parse_entry(text)) is not None}
    judged = await recovery.judge(db, [entry.run_id for entry in entries.values()])
    drop: list[str] = []
    head: list[str] = [text for text in texts if parse_probe(text) is not None]
    later: list[tuple[Entry, float]] = []
    for text, entry in entries.items():
        found = judged.get(entry.run_id, recovery.Judged("drop"))
        MOVED.labels(found.verdict).inc()
        if found.verdict == "head":
            head.append(text)
        elif found.verdict == "later":
            later.append((entry, found.wait_s))
        else:
            drop.append(text)
    drop += [text for text in texts if text not in entries and text not in head]
    await _send(redis, queue, worker_id, drop, head, later)
    log.warning("%d entries of a dead worker were moved: %d dropped, %d to the head, %d later",
                len(texts), len(drop), len(head), len(later),
                extra={"worker_id": worker_id, "queue": queue})  # fmt: skip


async def _send(
    redis: Queue,
    queue: str,
    worker_id: str,
    drop: Sequence[str],
    head: Sequence[str],
    later: Sequence[tuple[Entry, float]],
) -> None:
    if drop:
        await redis.drop(queue, worker_id, drop)
    if head:
        await redis.release(queue, worker_id, head)
    if later:
        await redis.later(queue, worker_id, later)
