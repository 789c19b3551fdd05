"""Which agents and queues there are: what workers have registered, remembered for two seconds.

The api has no agents installed. A name that is not in memory is looked up once more before it is
refused, so that a worker which registered a moment ago is found.
"""

import asyncio
import time
from collections.abc import Mapping

from researchcopilot.core.faults import Fault
from researchcopilot.core.models import AgentInfo
from researchcopilot.storage import workers
from researchcopilot.storage.db import Database

REMEMBER_S = 2.0
# A flood of unknown names re-reads no more often than this.
MISS_S = 0.1


class Catalogue:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._agents: dict[str, AgentInfo] = {}
        self._queues: set[str] = set()
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def agents(self) -> Mapping[str, AgentInfo]:
        """By name, no older than two seconds."""
        await self._fresh(REMEMBER_S)
        return self._agents

    async def agent(self, name: str, where: str, faults: list[Fault]) -> AgentInfo | None:
        await self._fresh(REMEMBER_S)
        if name not in self._agents:
            await self._fresh(MISS_S)
        found = self._agents.get(name)
        if found is None:
            faults.append(Fault(where, self._no_agent(name), "unknown_agent"))
        return found

    async def queue(self, name: str, where: str, faults: list[Fault]) -> None:
        await self._fresh(REMEMBER_S)
        if name not in self._queues:
            await self._fresh(MISS_S)
        if name not in self._queues:
            names = ", ".join(sorted(self._queues)) or "none yet: start a worker"
            message = f"names the queue {name!r}, which no worker serves; queues: {names}"
            faults.append(Fault(where, message, "unknown_queue"))

    def _no_agent(self, name: str) -> str:
        if not self._agents:
            return f"names the agent {name!r}, but no worker has registered yet: start a worker"
        names = ", ".join(sorted(self._agents))
        return f"names the agent {name!r}, which no worker has registered; agents: {names}"

    async def _fresh(self, age_s: float) -> None:
        if time.monotonic() - self._read_at <= age_s:
            return
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        try:
            asked_at = time.monotonic()
            agents = await workers.known_agents(self._db)
            self._queues = await workers.known_queues(self._db)
            self._agents = {agent.name: agent for agent in agents}
            self._read_at = asked_at
        finally:
            self._reading = None
