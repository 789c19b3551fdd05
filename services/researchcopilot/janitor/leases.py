"""Duty: runs whose lease has run out are taken back.

After the janitor or Postgres was away, healthy workers could not be seen renewing: then a full
lease is waited before anything is taken back, so that they renew first. "Away" is judged by the
last good sweep of any janitor, kept in Postgres.
"""

import logging
import time

from researchcopilot.core.settings import RecoverySettings
from researchcopilot.janitor.metrics import RECLAIMED
from researchcopilot.storage import moves, recovery
from researchcopilot.storage.db import Database
from researchcopilot.storage.push import push_moved
from researchcopilot.storage.queue import Queue

log = logging.getLogger(__name__)
BATCH = 500


class Leases:
    def __init__(self, db: Database, redis: Queue, settings: RecoverySettings) -> None:
        self._db = db
        self._redis = redis
        self._settings = settings
        self._not_before = 0.0

    async def sweep(self) -> None:
        age = await recovery.duty_age(self._db, "leases")
        away = max(self._settings.lease_s / 2, 2 * self._settings.sweep_s)
        if age is not None and age > away:
            log.info("the last sweep was %.1f s ago; leases get one more lease to renew", age)
            self._not_before = time.monotonic() + self._settings.lease_s
        await recovery.duty_done(self._db, "leases")
        if time.monotonic() >= self._not_before:
            await self._take_back()

    async def _take_back(self) -> None:
        while True:
            moved = await moves.reclaim(self._db, limit=BATCH, max_losses=self._settings.max_losses)
            for run_id, status in moved.verdicts:
                RECLAIMED.labels(status).inc()
                log.warning("taken back from a dead worker", extra={"run_id": run_id, "to": status})
            await push_moved(self._redis, moved)
            if len(moved.verdicts) < BATCH:
                return
