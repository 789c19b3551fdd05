"""Due entries of all queues to their lists: when the next is due, at the latest in a moment."""

import logging
import time

from prometheus_client import Counter, Gauge, Histogram

from researchcopilot.core.errors import Unavailable
from researchcopilot.runtime.loop import Beat, Stop
from researchcopilot.storage import recovery
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

MOVED = Counter("researchcopilot_due_moved_total", "Delayed entries that became due", ["queue"])
LATE = Histogram(
    "researchcopilot_delay_lateness_seconds",
    "How late the oldest due entry of a round was moved",
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 300),
)
NEXT_DUE = Gauge("researchcopilot_delayed_next_due_seconds", "Until the next is due", ["queue"])

log = logging.getLogger(__name__)
BATCH = 500
PAUSE_S = 0.2  # an entry that arrives with an earlier time is seen after so long at most
QUEUES_S = 5.0


class DueMover:
    def __init__(self, db: Database, redis: Queue, stop: Stop) -> None:
        self._db = db
        self._redis = redis
        self._stop = stop
        self._queues: list[str] = []
        self._read_at = -QUEUES_S
        self.beat = Beat()

    async def run(self) -> None:
        while not self._stop.is_set:
            pause = PAUSE_S
            try:
                await self._read_queues()
                for queue in self._queues:
                    pause = min(pause, await self._move(queue))
            except Unavailable as error:
                log.warning("due entries wait: %s", error)
            except Exception:
                log.exception("moving due entries failed; it is tried again")
                pause = 1.0
            self.beat.mark()
            if pause > 0:
                await self._stop.wait(pause)

    async def _read_queues(self) -> None:
        """Which queues there are changes rarely; Postgres being away must not stop the clock."""
        if time.monotonic() - self._read_at < QUEUES_S:
            return
        self._read_at = time.monotonic()
        try:
            self._queues = await recovery.queues(self._db)
        except Unavailable as error:
            log.warning("the known queues are used: %s", error)

    async def _move(self, queue: str) -> float:
        """Seconds until this queue wants another look."""
        due = await self._redis.due(queue, BATCH)
        NEXT_DUE.labels(queue).set(-1 if due.next_s is None else due.next_s)
        if due.moved:
            MOVED.labels(queue).inc(due.moved)
            LATE.observe(due.late_s)
        if due.moved == BATCH:
            return 0.0
        return PAUSE_S if due.next_s is None else due.next_s
