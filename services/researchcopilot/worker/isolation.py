"""Isolation: which runs get a process of their own, and where the processes come from.

All of them with RC_WORKER_ISOLATION=process; else only those whose workers have died twice, so that
one which takes its process with it does not take its neighbours a third time.
"""

import asyncio
import logging
from dataclasses import asdict
from typing import Any

from researchcopilot.core.models import Claim
from researchcopilot.core.settings import Settings
from researchcopilot.worker.child_context import write_claim
from researchcopilot.worker.context import WorkerContext
from researchcopilot.worker.group import ProcessGroup
from researchcopilot.worker.metrics import ISOLATED

log = logging.getLogger(__name__)
LOSSES = 2


class Isolation:
    """Starts processes. With isolation for all runs one is kept ready, since Python and the agents
    take some tenths of a second to load."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._memory_mb = settings.worker.memory_limit_mb
        self._keeps_spare = settings.worker.isolation == "process"
        self._spare: ProcessGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def wanted(self, claim: Claim) -> bool:
        """Does this one get a process of its own? Then it is counted."""
        if self._settings.worker.isolation == "process":
            why = "setting"
        elif claim.losses >= LOSSES:
            why = "losses"
        else:
            return False
        ISOLATED.labels(why).inc()
        return True

    async def open(self) -> None:
        """Make the first one that is kept ready."""
        if self._keeps_spare:
            await self._make_spare()

    async def close(self) -> None:
        self._keeps_spare = False
        if self._tasks:
            await asyncio.wait(self._tasks)
        if spare := self.spare():
            await spare.end()

    def spare(self) -> ProcessGroup | None:
        """One that has loaded the agents already, or is about to."""
        spare, self._spare = self._spare, None
        return spare

    def refill(self) -> None:
        """Make another; to be called once the run that took the spare does not need the processor
        as badly as it did."""
        if self._keeps_spare and self._spare is None and not self._tasks:
            task = asyncio.create_task(self._make_spare())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def new(self) -> ProcessGroup:
        """Raises OSError."""
        return await ProcessGroup.open(self._memory_mb)

    def job(self, context: WorkerContext, limit_s: float) -> dict[str, Any]:
        """What a process has to be told."""
        settings = self._settings
        claim = context.run
        return {
            "claim": write_claim(claim),
            "limit_s": limit_s,
            "cache_dir": str(context.cache_dir),
            "database": asdict(settings.database),
            "redis": asdict(settings.redis),
            "log": {"level": settings.log.level, "format": settings.log.format},
            "max_result_bytes": settings.worker.max_result_bytes,
            "bound": {
                "worker_id": claim.worker_id,
                "run_id": claim.run_id,
                "claim_no": claim.claim_no,
                "agent": claim.agent,
            },
        }

    async def _make_spare(self) -> None:
        try:
            self._spare = self._spare or await self.new()
        except OSError as error:
            log.warning("no process is kept ready: %s", error)
