"""Duty: runs whose lease has run out are taken back.

After the janitor or Postgres was away, healthy workers could not be seen renewing: then a full
lease is waited before anything is taken back, so that they renew first. "Away" is judged by the
last good sweep of any janitor, kept in Postgres.
"""

import logging
from dataclasses import replace

from researchcopilot.core.models import Due
from researchcopilot.core.settings import RecoverySettings
from researchcopilot.janitor.metrics import RECLAIMED, RECOVERED
from researchcopilot.janitor.returning import Returning
from researchcopilot.storage import moves, recovery
from researchcopilot.storage.db import Database
from researchcopilot.storage.moves import Moved
from researchcopilot.storage.push import push_moved
from researchcopilot.storage.queue import Queue

log = logging.getLogger(__name__)
BATCH = 500


class Leases:
    def __init__(
        self, db: Database, redis: Queue, settings: RecoverySettings, returning: Returning
    ) -> None:
        self._db = db
        self._redis = redis
        self._settings = settings
        self._returning = returning

    async def sweep(self) -> None:
        lease_s = self._settings.lease_s
        away_s = max(lease_s / 2, 2 * self._settings.sweep_s)
        since = await recovery.sweep_begins(self._db, "leases", away_s)
        if since is not None and since < lease_s:
            log.info("janitors were away until %.1f s ago; workers renew first", since)
            return
        await self._take_back()

    async def _take_back(self) -> None:
        head: list[Due] = []
        try:
            while True:
                moved = await moves.reclaim(
                    self._db, limit=BATCH, max_losses=self._settings.max_losses
                )
                _tell(moved)
                head += moved.head
                await push_moved(self._redis, replace(moved, head=()))
                if len(moved.verdicts) < BATCH:
                    break
        finally:
            await self._returning.push(head)


def _tell(moved: Moved) -> None:
    found = zip(moved.verdicts, moved.reasons, moved.recovery_s, strict=True)
    for (run_id, status), reason, seconds in found:
        RECLAIMED.labels(reason, status).inc()
        if seconds is not None:
            RECOVERED.labels(reason).observe(seconds)
        extra = {"run_id": run_id, "to": status, "reason": reason}
        log.warning("taken back from a worker", extra=extra)
