"""Duty: a Redis that was wiped, replaced or restored is written anew from Postgres.

Its identity is (epoch key, replication id, run id): FLUSHALL changes the first, a restart without
its file or a failover the others.
"""

import logging
import time

from researchcopilot.janitor.metrics import REBUILDS
from researchcopilot.storage import recovery
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

log = logging.getLogger(__name__)


async def check_redis(db: Database, redis: Queue) -> None:
    if await recovery.is_known_redis(db, redis):
        return
    started = time.monotonic()
    log.warning("this Redis is new, was wiped or restored: it is rebuilt from Postgres")
    entries = await recovery.rebuild(db, redis)
    if entries is not None:
        REBUILDS.inc()
        log.info("Redis is rebuilt: %d entries in %.2f s", entries, time.monotonic() - started)
