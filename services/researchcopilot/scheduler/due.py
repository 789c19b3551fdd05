"""Due entries of all queues to their lists: sleeps until the next is due, and is woken by an
earlier one. A wake-up that got lost costs FALLBACK_S at most."""

import asyncio
import logging
import math
import time

from prometheus_client import Counter, Histogram

from researchcopilot.core.errors import Unavailable
from researchcopilot.runtime.alarm import Alarm
from researchcopilot.runtime.loop import Beat, Stop, every
from researchcopilot.storage import recovery
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

MOVED = Counter("researchcopilot_due_moved_total", "Delayed entries that became due", ["queue"])
LATE = Histogram(
    "researchcopilot_delay_lateness_seconds",
    "How late each delayed entry was moved to its queue",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 300),
)

log = logging.getLogger(__name__)
BATCH = 500
FALLBACK_S = 1.0
# While nobody listens for wake-ups, each look is a fallback.
DEAF_S = 0.1
# Entries that are due one after the other are moved together: a round for each would only cost.
TOGETHER_S = 0.002
QUEUES_S = 5.0


class DueMover:
    def __init__(self, db: Database, redis: Queue, stop: Stop) -> None:
        self._db = db
        self._redis = redis
        self._stop = stop
        self._look_at: dict[str, float] = {}  # queue → when (monotonic) it wants a look
        self.alarm = Alarm()
        self.beat = Beat()
        self.deaf = True

    def wake(self, queue: str) -> None:
        """Something of this queue is due earlier than was known; it may be a new queue."""
        self._look_at[queue] = 0.0
        self.alarm.ring()

    def wake_all(self) -> None:
        for queue in self._look_at:
            self._look_at[queue] = 0.0
        self.alarm.ring()

    async def run(self) -> None:
        # On the side: Postgres being away must not stop the clock.
        reading = asyncio.create_task(
            every(QUEUES_S, self._read_queues, self._stop, name="reading the queues")
        )
        try:
            await self._rounds()
        finally:
            reading.cancel()

    async def _rounds(self) -> None:
        while not self._stop.is_set:
            try:
                pause = await self._round()
            except Unavailable as error:
                log.warning("due entries wait: %s", error)
                pause = FALLBACK_S
            except Exception:
                log.exception("moving due entries failed; it is tried again")
                pause = FALLBACK_S
            self.beat.mark()
            if pause > 0:
                await self.alarm.sleep(pause)

    async def _round(self) -> float:
        """Look at every queue that wants it; seconds until one wants it again."""
        began = time.monotonic()
        for queue, look_at in list(self._look_at.items()):
            if look_at <= began:
                await self._move(queue)
        nearest = min(self._look_at.values(), default=math.inf)
        return min(nearest - time.monotonic(), FALLBACK_S)

    async def _read_queues(self) -> None:
        """Which queues there are changes rarely."""
        for queue in await recovery.queues(self._db):
            if queue not in self._look_at:
                self.wake(queue)

    async def _move(self, queue: str) -> None:
        """Move what is due, and note when this queue wants another look."""
        # Before the look: a wake-up that comes during it is not forgotten.
        self._look_at[queue] = math.inf
        try:
            due = await self._redis.due(queue, BATCH)
        except BaseException:
            self._look_at[queue] = 0.0
            raise
        now = time.monotonic()
        pause = FALLBACK_S if due.next_s is None else min(due.next_s, FALLBACK_S)
        if due.late_s and not due.overdue:
            pause = max(pause, TOGETHER_S)
        if self.deaf:
            pause = min(pause, DEAF_S)
        self._look_at[queue] = min(self._look_at[queue], now + pause)
        MOVED.labels(queue).inc(len(due.late_s))
        for late_s in due.late_s:
            LATE.observe(late_s)
