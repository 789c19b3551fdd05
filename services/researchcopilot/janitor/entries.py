"""Duty: dead workers let go of what they hold in their processing lists.

Dead by Postgres: it said goodbye, or its row was not renewed for two leases.
"""

from researchcopilot.core.settings import RecoverySettings
from researchcopilot.storage import dead_hands, workers
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue


async def clear_dead(db: Database, redis: Queue, settings: RecoverySettings) -> None:
    dead = await workers.dead_workers(db, stale_s=2 * settings.lease_s)
    await dead_hands.clear(db, redis, dead)
