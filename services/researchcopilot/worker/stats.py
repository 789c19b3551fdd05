"""What this worker has finished, in rows of its own each minute: aggregate_stats.

Counted in memory and written in parts. A part that could not be written is sent again as it is, and
what is counted meanwhile waits for the next, so that a lost answer never counts twice. Nobody else
writes these rows, so there is no lock; what a process that was killed had not written is a gap in a
chart.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from researchcopilot.core.models import Claim
from researchcopilot.storage import stats
from researchcopilot.storage.db import Database
from researchcopilot.storage.stats import Finished

WORDS = {"succeeded": "succeeded", "failed": "failed", "cancelled": "cancelled", "retry": "retried"}


@dataclass(slots=True)
class Count:
    """Of one agent in one workspace since the last part."""

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    retried: int = 0
    seconds: float = 0.0


class Stats:
    def __init__(self, db: Database, worker_id: str) -> None:
        self._db = db
        self._worker_id = worker_id
        self._counts: dict[tuple[int, str], Count] = defaultdict(Count)
        self._part = 0
        self._unsent: Sequence[Finished] = ()
        self._writing = asyncio.Lock()

    def add(self, claim: Claim, word: str, seconds: float) -> None:
        """A claim has ended: succeeded, failed, cancelled, retry. Others (release, stale) do not
        count: somebody else ends that run."""
        field = WORDS.get(word)
        if field is not None:
            count = self._counts[claim.workspace_id, claim.agent]
            setattr(count, field, getattr(count, field) + 1)
            count.seconds += seconds

    async def write(self) -> None:
        """Write what has been counted. Raises Unavailable; then it is kept."""
        async with self._writing:
            if not self._unsent:
                self._close_part()
            if self._unsent:
                await stats.write(self._db, self._worker_id, self._part, self._unsent)
                self._unsent = ()

    def _close_part(self) -> None:
        counts, self._counts = self._counts, defaultdict(Count)
        self._part += bool(counts)
        self._unsent = [
            Finished(workspace_id, agent, c.succeeded, c.failed, c.cancelled, c.retried, c.seconds)
            for (workspace_id, agent), c in counts.items()
        ]
