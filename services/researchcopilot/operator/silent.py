"""Workers that hold runs and have missed a renewal: what does the cluster say of their Pods?

This is the comparison at the start, and the net under the events: one that was missed (the operator
was not there, a watch had to begin anew with a list) tells nothing ever again. Only silent workers
are asked about, so that nothing is asked where all is well; and only of them is anything believed
here, so that a Pod that our API server does not know (another cluster, other rights) costs no
worker that lives its runs.
"""

import asyncio
import logging
from typing import Any

from researchcopilot.core.errors import ResearchCopilotError
from researchcopilot.operator.context import Context
from researchcopilot.operator.metrics import FAILED
from researchcopilot.operator.recovery import Recovery
from researchcopilot.operator.signals import Asked, Signal, suspect
from researchcopilot.storage.pods import silent_pods

log = logging.getLogger(__name__)
MOST = 50  # Pods that are asked about in a round
AT_ONCE = 8


class Silent:
    def __init__(self, context: Context, recovery: Recovery) -> None:
        self._context = context
        self._recovery = recovery
        self._few = asyncio.Semaphore(AT_ONCE)

    async def look(self) -> None:
        """One round. Raises Unavailable if Postgres is away."""
        namespace = self._context.namespace
        found = await silent_pods(
            self._context.db,
            namespace,
            lease_s=self._context.settings.recovery.lease_s,
            limit=MOST,
        )
        asked = (Asked(uid, name, namespace) for uid, name in found)
        for signals in await asyncio.gather(*(self._ask(pod) for pod in asked)):
            for signal in signals:
                self._recovery.put(signal)

    async def _ask(self, asked: Asked) -> list[Signal]:
        container = self._context.settings.operator.container
        async with self._few:
            try:
                pod = await self._pod(asked.name)
            except ResearchCopilotError as error:
                FAILED.labels("silent").inc()
                log.warning("a silent worker's Pod cannot be asked about: %s", error)
                return []
        return suspect(pod, asked, container, self._context.kube.now())

    async def _pod(self, name: str) -> dict[str, Any] | None:
        """By a list, so that no right to `get` is needed."""
        path = f"/api/v1/namespaces/{self._context.namespace}/pods"
        async for page in self._context.kube.pages(path, fieldSelector=f"metadata.name={name}"):
            for pod in page:
                if pod["metadata"]["name"] == name:
                    return pod
        return None
