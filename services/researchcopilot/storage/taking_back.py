"""Taking runs back, with all that follows: the rows, the reasons, the pushes.

One way for both who do it: the janitor, which sees leases run out, and the operator, which is told
that a Pod has died. Safe twice and at once; whoever dies between the commit and the push leaves
lost pushes, which the probe finds.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from prometheus_client import Counter, Histogram

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
RECOVERED = Histogram(
    "researchcopilot_recovery_seconds",
    "From the last sign of life of a run's worker (left: its goodbye; forgotten: the end of the "
    "lease; what Kubernetes told: that signal) to the commit that took the run back",
    ["reason"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 15, 20, 30, 60, 120, 600, 3600),
)
BATCH = 500
SEEN = ("left", "silent", "forgotten")  # what `moves.reclaim` says without `gone`


def begins(reasons: Sequence[str]) -> None:
    """None yet for these: a series that is born with the first of its kind hides that one."""
    for reason in reasons:
        RECOVERED.labels(reason)
        for status in ("queued", "failed", "cancelled"):
            RECLAIMED.labels(reason, status)


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
            if gone is None:
                _measure(moved)
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


def _measure(moved: Moved) -> None:
    for reason, seconds in zip(moved.reasons, moved.recovery_s, strict=True):
        if seconds is not None:
            RECOVERED.labels(reason).observe(seconds)
