"""Duty: ended runs, their messages, steps and ledger, empty sessions and old keys leave in small
batches, so that no statement is long and no replica falls behind.

Sessions have no index that tells the old from the young: they are looked at page by page, some in
each round, and the next round goes on where this one stopped.
"""

import logging

from researchcopilot.core.settings import RetentionSettings
from researchcopilot.janitor.metrics import PRUNED
from researchcopilot.runtime.loop import Stop
from researchcopilot.storage.db import Database
from researchcopilot.storage.retention import FIRST, KINDS, prune, prune_sessions

log = logging.getLogger(__name__)
BATCH = 500
PAGES = 20  # of sessions in a round, and as many more as there is something to remove
PAUSE_S = 0.05


class Retention:
    def __init__(self, db: Database, keep: RetentionSettings, stop: Stop) -> None:
        self._db = db
        self._keep = keep
        self._stop = stop
        self._after = FIRST  # the last session that was looked at

    async def sweep(self) -> None:
        for kind in KINDS:
            removed = BATCH
            while removed == BATCH and not self._stop.is_set:
                removed = await prune(self._db, kind, self._keep, BATCH)
                await self._tell(kind, removed)
        await self._sessions()

    async def _sessions(self) -> None:
        """To the end of the table at most."""
        page = 0
        while page < PAGES and not self._stop.is_set:
            removed, last = await prune_sessions(self._db, self._after, self._keep, BATCH)
            await self._tell("sessions", removed)
            self._after = last or FIRST
            if last is None:
                return
            page += removed == 0

    async def _tell(self, kind: str, removed: int) -> None:
        if removed:
            PRUNED.labels(kind).inc(removed)
            log.info("removed %d old %s", removed, kind)
            await self._stop.wait(PAUSE_S)
