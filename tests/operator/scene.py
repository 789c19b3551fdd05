"""Objects of ours and who acts on them: an operator, and a worker with the agents that are asked
for, over the servers of a test and its API server. The fixture of this name gives one."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from tests.operator.cluster import Served
from tests.operator.stage import Operating, operating, with_operator
from tests.support import echo, working

from researchcopilot.core.settings import Settings
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class Scene:
    settings: Settings
    db: Database
    queue: Queue
    served: Served

    def but(self, **fields: Any) -> "Scene":
        """The same with other settings of the operator."""
        return replace(self, settings=with_operator(self.settings, custom_resources=True, **fields))

    def operating(self) -> AbstractAsyncContextManager[Operating]:
        return operating(self.settings, self.db, self.queue, self.served)

    def working(self, **agents: Callable[..., Any]) -> AbstractAsyncContextManager[Worker]:
        """A worker that has these agents; `echo` if none are named."""
        return working(self.settings, self.db, self.queue, agents or {"echo": echo})

    @asynccontextmanager
    async def at_work(self, **agents: Callable[..., Any]) -> AsyncIterator[Operating]:
        """Both. The worker comes first, so that the operator knows its agents from the start."""
        async with self.working(**agents), self.operating() as operator:
            yield operator
