"""Duty: expire_memories. Rows of memories that are past their time leave in small batches; nobody
has seen them since. Under a lock, so that two janitors do not look for the same rows: without it
they would only do the work twice."""

import logging

from researchcopilot.janitor.metrics import PRUNED
from researchcopilot.storage.db import Database
from researchcopilot.storage.lock import Locks
from researchcopilot.storage.memories import remove_expired

log = logging.getLogger(__name__)
LOCK = "expire_memories"
LOCK_S = 30.0
BATCH = 500


async def expire_memories(db: Database, locks: Locks) -> None:
    async with locks.hold(LOCK, ttl_s=LOCK_S) as held:
        removed = BATCH
        while held is not None and removed == BATCH and not held.is_lost:
            removed = await remove_expired(db, BATCH)
            if removed:
                PRUNED.labels("memories").inc(removed)
                log.info("removed %d memories that had expired", removed)
