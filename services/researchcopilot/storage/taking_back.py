"""Taking runs back, with all that follows: the rows, the reasons, the pushes.

One way for both who do it: the janitor, which sees leases run out, and the operator, which is told
that a Pod has died. Safe twice and at once; whoever dies between the commit and the push leaves
lost pushes, which the probe finds.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from prometheus_client import Counter

from researchcopilot.core.models import Due
from researchcopilot.storage import moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.moves import Gone, Moved
from researchcopilot.storage.push import push_moved
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.returning import Returning

log = logging.getLogger(__name__)
RECLAIMED = Counter(
    "researchcopilot_reclaims_total",
    "Runs taken back, by what became of their worker (left, silent, forgotten; or what Kubernetes "
    "told: pod_deleted, evicted, oom_killed, …) and new status",
    ["reason", "status"],
)
BATCH = 500


async def take_back(
    db: Database,
    redis: Queue,
    returning: Returning,
    *,
    max_losses: int,
    gone: Sequence[Gone] | None = None,
    told: Callable[[Moved], None] = lambda moved: None,
) -> None:
    """All that there is to take back, see `moves.reclaim`. `told` hears of each group as soon as it
    is committed. Raises Unavailable; what was moved by then is pushed, or found by the probe."""
    head: list[Due] = []
    try:
        while True:
            moved = await moves.reclaim(db, limit=BATCH, max_losses=max_losses, gone=gone)
            _tell(moved)
            told(moved)
            head += moved.head
            await push_moved(redis, replace(moved, head=()))
            if len(moved.verdicts) < BATCH:
                return
    finally:
        await returning.push(head)


def _tell(moved: Moved) -> None:
    for (run_id, status), reason in zip(moved.verdicts, moved.reasons, strict=True):
        RECLAIMED.labels(reason, status).inc()
        extra = {"run_id": run_id, "to": status, "reason": reason}
        log.warning("taken back from a worker", extra=extra)
