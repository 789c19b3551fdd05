"""Duty: the safety net under session turns. Parked runs that nobody would free are counted and
freed. The count must stay 0: each is a fault of ours in a move, and worth a report."""

import logging

from researchcopilot.janitor.metrics import FORGOTTEN
from researchcopilot.storage import moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.push import push_moved
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.waiting import FIRST, suspects

log = logging.getLogger(__name__)
PAGE = 1000


async def free_forgotten(db: Database, redis: Queue) -> None:
    last: str | None = FIRST
    while last is not None:
        last, found = await suspects(db, last, PAGE)
        if not found:
            continue
        freed = await moves.free(db, found)
        for hint in freed.tail:
            FORGOTTEN.inc()
            log.error(
                "a parked run was forgotten by the move that should have freed it; it is freed now",
                extra={"run_id": hint.entry.run_id},
            )
        await push_moved(redis, freed)
