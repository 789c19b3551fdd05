"""Watching runs end: one task a process reads the statuses of all that are watched, in one query.

A thousand clients that wait hold no connection and start no query of their own. What ended is
read from the rows and never from Redis, so that a flush or a crash can hang nobody. Postgres being
away makes waiting longer, not wrong: the watch goes on until its own time is over.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Gauge

from researchcopilot.core.errors import Unavailable
from researchcopilot.core.states import TERMINAL
from researchcopilot.storage.db import Database
from researchcopilot.storage.runs import statuses

EVERY_S = 0.075
MOST_IN_A_QUERY = 1000
log = logging.getLogger(__name__)
_WATCHED = Gauge("researchcopilot_api_watched_runs", "Runs whose end somebody waits for")
_WAITING = Gauge("researchcopilot_api_waiting_requests", "Requests that wait for a run's end")


class Watcher:
    """`run` is the task; `watch` gives a future that is done once the run has ended."""

    def __init__(self, db: Database, every_s: float = EVERY_S) -> None:
        self._db = db
        self._every_s = every_s
        self._watched: dict[str, set[asyncio.Future[None]]] = {}
        self._some = asyncio.Event()
        self._closed = False

    @contextmanager
    def watch(self, run_id: str) -> Iterator[asyncio.Future[None]]:
        """Only inside is the run watched: leaving drops the watch."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_result(None)
        waiting = self._watched.setdefault(run_id, set())
        waiting.add(future)
        _WATCHED.set(len(self._watched))
        self._some.set()
        try:
            with _WAITING.track_inprogress():
                yield future
        finally:
            waiting.discard(future)
            if not waiting:
                del self._watched[run_id]
            _WATCHED.set(len(self._watched))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._some.wait()
            if not self._watched:
                self._some.clear()
                continue
            try:
                await self._look()
            except Unavailable as error:
                log.warning("the watch goes on when Postgres is back: %s", error)
            except Exception:
                log.exception("the watch failed; it goes on")
            await asyncio.sleep(self._every_s)

    def close(self) -> None:
        """Let all go: who waits is told how the run stands now, since this process ends."""
        self._closed = True
        for run_id in list(self._watched):
            self._release(run_id)

    async def _look(self) -> None:
        run_ids = list(self._watched)
        for start in range(0, len(run_ids), MOST_IN_A_QUERY):
            part = run_ids[start : start + MOST_IN_A_QUERY]
            found = await statuses(self._db, part)
            for run_id in part:
                status = found.get(run_id)
                if status is None or status in TERMINAL:  # None: pruned meanwhile
                    self._release(run_id)

    def _release(self, run_id: str) -> None:
        for future in self._watched.get(run_id, ()):
            if not future.done():
                future.set_result(None)
