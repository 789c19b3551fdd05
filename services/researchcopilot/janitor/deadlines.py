"""Duty: queued runs past their deadline fail, so that nothing is queued for ever."""

import logging

from researchcopilot.janitor.metrics import EXPIRED
from researchcopilot.storage import moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.push import push_moved
from researchcopilot.storage.queue import Queue

log = logging.getLogger(__name__)
BATCH = 500


async def expire(db: Database, redis: Queue) -> None:
    while True:
        moved = await moves.expire(db, limit=BATCH)
        for (run_id, _), reason in zip(moved.verdicts, moved.reasons, strict=True):
            EXPIRED.labels(reason).inc()
            log.warning("failed at its deadline", extra={"run_id": run_id, "reason": reason})
        await push_moved(redis, moved)
        if len(moved.verdicts) < BATCH:
            return
