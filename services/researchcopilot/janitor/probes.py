"""Duty: single lost pushes. A mark with the database's time goes to the tail of each queue; once a
worker has taken it, all that stood before it was taken too. What is queued and older was lost."""

import logging

from researchcopilot.core.models import Entry
from researchcopilot.core.settings import RecoverySettings
from researchcopilot.janitor.metrics import LOST_PUSHES
from researchcopilot.storage import recovery
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

log = logging.getLogger(__name__)
KEEP_S = 60
BATCH = 500
PAGES = 20  # of a queue in a round: no more at once to the head, where they pass all others


async def find_lost(db: Database, redis: Queue, settings: RecoverySettings) -> None:
    for queue in await recovery.queues(db):
        LOST_PUSHES.labels(queue)  # from 0: a series that is born with a loss hides that one
        await redis.probe(queue, await recovery.database_time(db), KEEP_S)
        taken = await redis.last_probed(queue)
        if taken is None:
            continue
        before = taken - int(settings.probe_slack_s * 1_000_000)
        entries = await _lost(db, queue, before, settings.spread_s)
        if entries:
            LOST_PUSHES.labels(queue).inc(len(entries))
            log.warning("%d lost pushes were found and go to the head", len(entries),
                        extra={"queue": queue})  # fmt: skip
            await redis.push_head(queue, entries)


async def _lost(db: Database, queue: str, before: int, spread_s: float) -> list[Entry]:
    """All of them, or so many pages: each finds those that the one before has not marked."""
    found: list[Entry] = []
    for _ in range(PAGES):
        page = await recovery.lost_pushes(db, queue, before, BATCH, spread_s=spread_s)
        found += page
        if len(page) < BATCH:
            break
    return found
