"""Duty: the one exporter of what is true of the whole and not of a process.

Queue depths, ages, dead letters and Redis' memory are told by the janitor alone; two janitors tell
the same, so that `max` over them is right and a sum is not. What can no longer be read is taken
away, not left at its last value. From the last look it also answers how many workers a pool wants.
"""

import json
import time
from collections.abc import Mapping
from math import ceil
from urllib.parse import parse_qs, unquote, urlsplit

from prometheus_client import Gauge

from researchcopilot.core.errors import Unavailable
from researchcopilot.core.variables import parse_queues
from researchcopilot.storage import depths
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

STALE_S = 30.0
PATH = "/metrics/queue/"


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    return Gauge(f"researchcopilot_{name}", text, labels)


WAITING = _gauge("queue_waiting", "Runs that are due and wait for a worker", "queue")
PROCESSING = _gauge("queue_processing", "Entries in the hands of workers", "queue")
DELAYED = _gauge("queue_delayed", "Runs that are not due yet", "queue")
RUNNING = _gauge("queue_running", "Runs that are running", "queue")
LOAD = _gauge("queue_load", "Waiting and running: what slots are wanted for", "queue")
OLDEST = _gauge("queue_oldest_waiting_seconds", "The oldest due run waits for so long", "queue")
NEXT_DUE = _gauge(
    "queue_next_due_seconds", "Until the next delayed run is due, below 0: it is late", "queue"
)
WORKERS = _gauge("queue_workers", "Live workers that serve it", "queue")
SLOTS = _gauge("queue_slots", "Their slots", "queue")
DEAD = _gauge("dead_letters", "Failed runs that nobody has dealt with, up to 100000")
INDEX_VERSION = _gauge("index_version", "Newest index version", "workspace")
INDEX_AGE = _gauge("index_age_seconds", "Since it was published", "workspace")
MEMORY = _gauge("redis_memory_bytes", "Memory that Redis uses")
MEMORY_LIMIT = _gauge("redis_memory_limit_bytes", "Its maxmemory, 0: none")


class Depths:
    """`measure` is the duty; `answer` is for the health server's thread."""

    def __init__(
        self, db: Database, redis: Queue, *, lease_s: float, queues: Mapping[str, int]
    ) -> None:
        self._db = db
        self._redis = redis
        self._stale_s = 3 * lease_s
        self._queues = queues
        self._told: dict[Gauge, set[str]] = {}
        self._loads: tuple[float, dict[str, tuple[int, int]]] = (-STALE_S, {})

    async def measure(self) -> None:
        """One look at both servers. What one of them tells does not wait for the other."""
        try:
            rows = await depths.rows_by_queue(self._db, stale_s=self._stale_s)
            self._tell_rows(rows)
        except Unavailable:
            self._forget(RUNNING, OLDEST, WORKERS, SLOTS, LOAD)
            raise
        try:
            entries = await depths.entries_by_queue(self._redis, rows)
            memory = await depths.redis_memory(self._redis)
        except Unavailable:
            self._forget(WAITING, PROCESSING, DELAYED, NEXT_DUE, LOAD)
            raise
        self._tell_entries(entries, rows)
        MEMORY.set(memory.used)
        MEMORY_LIMIT.set(memory.limit)

    def _tell_rows(self, rows: Mapping[str, depths.Rows]) -> None:
        self._set(RUNNING, {queue: one.running for queue, one in rows.items()})
        self._set(OLDEST, {queue: one.oldest_s or 0.0 for queue, one in rows.items()})
        self._set(WORKERS, {queue: one.workers for queue, one in rows.items()})
        self._set(SLOTS, {queue: one.slots for queue, one in rows.items()})

    def _tell_entries(
        self, entries: Mapping[str, depths.Entries], rows: Mapping[str, depths.Rows]
    ) -> None:
        # A run that is due counts also while its entry is lost or on its way.
        waiting = {
            queue: max(one.waiting, rows[queue].oldest_s is not None)
            for queue, one in entries.items()
        }
        loads = {queue: (waiting[queue], rows[queue].running) for queue in entries}
        self._set(WAITING, waiting)
        self._set(PROCESSING, {queue: one.processing for queue, one in entries.items()})
        self._set(DELAYED, {queue: one.delayed for queue, one in entries.items()})
        self._set(LOAD, {queue: sum(both) for queue, both in loads.items()})
        due = {queue: one.next_due_s for queue, one in entries.items()}
        self._set(NEXT_DUE, {queue: wait for queue, wait in due.items() if wait is not None})
        self._loads = (time.monotonic(), loads)

    async def measure_rarely(self) -> None:
        """What costs more and changes less."""
        DEAD.set(await depths.dead_letters(self._db))
        ages = await depths.index_ages(self._db)
        self._set(INDEX_VERSION, {one.workspace: one.version for one in ages})
        self._set(INDEX_AGE, {one.workspace: one.age_s for one in ages})

    def _set(self, gauge: Gauge, values: Mapping[str, float]) -> None:
        for gone in self._told.get(gauge, set()) - values.keys():
            gauge.remove(gone)
        for label, value in values.items():
            gauge.labels(label).set(value)
        self._told[gauge] = set(values)

    def _forget(self, *gauges: Gauge) -> None:
        for gauge in gauges:
            self._set(gauge, {})

    # How many workers are wanted

    def answer(self, path: str) -> tuple[int, str, bytes] | None:
        """`/metrics/queue/<pool>?queues=runs=8,system=2` → (status, content type, body).

        The pool's queues and slots are told by who asks; else those of RC_WORKER_QUEUES hold. None:
        not a path of ours. 503 while nothing fresh is known, so that nobody scales by old numbers.
        """
        parts = urlsplit(path)
        if not parts.path.startswith(PATH) or not parts.path.removeprefix(PATH):
            return None
        given = parse_qs(parts.query).get("queues")
        try:
            queues = parse_queues(given[0]) if given else self._queues
        except ValueError as error:
            return _answer(400, {"error": f"queues: give {error}"})
        at, loads = self._loads
        if time.monotonic() - at > STALE_S:
            return _answer(503, {"error": f"nothing was measured for {STALE_S:g} s"})
        pool = unquote(parts.path.removeprefix(PATH))
        return _answer(200, {"pool": pool, **wanted(queues, loads)})


def wanted(queues: Mapping[str, int], loads: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """A worker has slots for each queue, so the queue that needs most workers decides."""
    mine = {queue: loads.get(queue, (0, 0)) for queue in queues}
    return {
        "waiting": sum(waiting for waiting, _ in mine.values()),
        "running": sum(running for _, running in mine.values()),
        "desired_workers": max(ceil(sum(mine[queue]) / slots) for queue, slots in queues.items()),
    }


def _answer(status: int, body: Mapping[str, object]) -> tuple[int, str, bytes]:
    return status, "application/json", json.dumps(body).encode() + b"\n"
