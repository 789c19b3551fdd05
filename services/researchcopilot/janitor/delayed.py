"""Duty: delayed runs that are due soon stand in the delayed set, whatever happened to their push.
A set needs no comparison: adding what is there changes nothing."""

from researchcopilot.storage import recovery
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

BATCH = 1000


async def add_due_soon(db: Database, redis: Queue) -> None:
    for queue in await recovery.queues(db):
        waits = await recovery.due_soon(db, queue)
        for start in range(0, len(waits), BATCH):
            await redis.delay(queue, waits[start : start + BATCH])
