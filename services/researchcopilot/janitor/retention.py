"""Duty: ended runs, their messages, steps and ledger, empty sessions and old keys leave in small
batches, so that no statement is long and no replica falls behind."""

import logging

from researchcopilot.core.settings import RetentionSettings
from researchcopilot.janitor.metrics import PRUNED
from researchcopilot.runtime.loop import Stop
from researchcopilot.storage.db import Database
from researchcopilot.storage.retention import KINDS, prune

log = logging.getLogger(__name__)
BATCH = 500
PAUSE_S = 0.05


async def remove_old(db: Database, keep: RetentionSettings, stop: Stop) -> None:
    for kind in KINDS:
        removed = BATCH
        while removed == BATCH and not stop.is_set:
            removed = await prune(db, kind, keep, BATCH)
            if removed:
                PRUNED.labels(kind).inc(removed)
                log.info("removed %d old %s", removed, kind)
                await stop.wait(PAUSE_S)
