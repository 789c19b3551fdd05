"""What a dead worker holds in its processing lists is moved by verdict: to the head, to the delayed
set, or away. A worker that was only stopped and comes back finds its entries gone and its claims
judged anew: nothing runs twice.
"""

import logging
from collections.abc import Collection, Sequence

from prometheus_client import Counter

from researchcopilot.core.models import Entry
from researchcopilot.storage import recovery
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue, parse_entry, parse_probe

log = logging.getLogger(__name__)
MOVED = Counter(
    "researchcopilot_dead_entries_total", "Entries of dead workers, by verdict", ["verdict"]
)


async def clear(
    db: Database,
    redis: Queue,
    dead: Sequence[tuple[str, Sequence[str]]],
    taken_back: Collection[str] = (),
) -> None:
    """Empty the hands of `dead`: (worker_id, its queues). Entries of the runs `taken_back` were
    pushed by whoever took these back, and are dropped. Raises Unavailable."""
    hands = [(queue, worker_id) for worker_id, queues in dead for queue in queues]
    if not hands:
        return
    held = await redis.hold_anything(hands)
    for (queue, worker_id), full in zip(hands, held, strict=True):
        if full:
            await _move(db, redis, queue, worker_id, taken_back)
    await redis.leave(*(worker_id for worker_id, _ in dead))


async def _move(
    db: Database, redis: Queue, queue: str, worker_id: str, taken_back: Collection[str]
) -> None:
    texts = await redis.in_hands(queue, worker_id)
    entries = {text: entry for text in texts if (entry := parse_entry(text)) is not None}
    judged = await recovery.judge(db, [entry.run_id for entry in entries.values()])
    drop: list[str] = []
    head: list[str] = []
    later: list[tuple[Entry, float]] = []
    for text, entry in entries.items():
        found = judged.get(entry.run_id, recovery.Judged("drop"))
        if entry.run_id in taken_back:
            found = recovery.Judged("drop")
        MOVED.labels(found.verdict).inc()
        if found.verdict == "head":
            head.append(text)
        elif found.verdict == "later":
            later.append((entry, found.wait_s))
        else:
            drop.append(text)
    # After them, as it stood: taken before them it would say that they were lost.
    head += [text for text in texts if parse_probe(text) is not None]
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
