"""What the servers hold: runs by status, messages by role, and the depth of each list."""

import asyncio
from dataclasses import dataclass

from researchcopilot.storage import overview
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Depths, Queue

QUEUES = ("runs", "system")


@dataclass(frozen=True, slots=True)
class Counts:
    statuses: dict[str, int]
    roles: dict[str, int]
    depths: dict[str, Depths]

    @property
    def at_rest(self) -> bool:
        """Nothing waits and nothing is in anybody's hands."""
        return not any(d.waiting + d.processing + d.delayed for d in self.depths.values())


async def count(database: Database, queue: Queue) -> Counts:
    return Counts(
        await overview.runs_by_status(database),
        await overview.messages_by_role(database),
        {name: await queue.depths(name) for name in QUEUES},
    )


async def settled(database: Database, queue: Queue, seconds: float) -> Counts:
    """The counts once all is at rest, or after so long as they are then."""
    until = asyncio.get_running_loop().time() + seconds
    while True:
        found = await count(database, queue)
        if found.at_rest or asyncio.get_running_loop().time() > until:
            return found
        await asyncio.sleep(0.05)
