"""Duty: runs whose lease has run out are taken back.

After the janitor or Postgres was away, healthy workers could not be seen renewing: then a full
lease is waited before anything is taken back, so that they renew first. "Away" is judged by the
last good sweep of any janitor, kept in Postgres.
"""

import logging

from researchcopilot.core.settings import RecoverySettings
from researchcopilot.storage import recovery
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.returning import Returning
from researchcopilot.storage.taking_back import SEEN, begins, take_back

log = logging.getLogger(__name__)


class Leases:
    def __init__(
        self, db: Database, redis: Queue, settings: RecoverySettings, returning: Returning
    ) -> None:
        self._db = db
        self._redis = redis
        self._settings = settings
        self._returning = returning
        begins(SEEN)

    async def sweep(self) -> None:
        lease_s = self._settings.lease_s
        away_s = max(lease_s / 2, 2 * self._settings.sweep_s)
        since = await recovery.sweep_begins(self._db, "leases", away_s)
        if since is not None and since < lease_s:
            log.info("janitors were away until %.1f s ago; workers renew first", since)
            return
        await take_back(
            self._db, self._redis, self._returning, max_losses=self._settings.max_losses
        )
