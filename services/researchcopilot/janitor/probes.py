"""Duty: single lost pushes. A mark with the database's time goes to the tail of each queue; once a
worker has taken it, all that stood before it was taken too. What is queued and older was lost."""

import logging

from researchcopilot.core.settings import RecoverySettings
from researchcopilot.janitor.metrics import LOST_PUSHES
from researchcopilot.storage import recovery
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

log = logging.getLogger(__name__)
KEEP_S = 60


async def find_lost(db: Database, redis: Queue, settings: RecoverySettings) -> None:
    for queue in await recovery.queues(db):
        await redis.probe(queue, await recovery.database_time(db), KEEP_S)
        taken = await redis.last_probed(queue)
        if taken is None:
            continue
        before = taken - int(settings.probe_slack_s * 1_000_000)
        entries = await recovery.lost_pushes(db, queue, before, spread_s=settings.spread_s)
        if entries:
            LOST_PUSHES.labels(queue).inc(len(entries))
            log.warning("%d lost pushes were found and go to the head", len(entries),
                        extra={"queue": queue})  # fmt: skip
            await redis.push_head(queue, entries)
