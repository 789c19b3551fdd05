"""Threads of agents that go on although their run has ended: nothing in Python can stop one. Of a
sync agent it is its own, of an async one it is what it has given to `asyncio.to_thread`.

Their runs are fenced, so they can write nothing; but each keeps memory and perhaps a connection.
When too many are lost the worker drains and exits, so that whoever started it starts another.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from researchcopilot.worker.metrics import LOST_THREADS

log = logging.getLogger(__name__)
EXIT_LOST = 71


class LostThreads:
    """`too_many` is called whenever one is lost and more than `most` are."""

    def __init__(self, most: int, too_many: Callable[[], None]) -> None:
        self.most = most
        self._too_many = too_many
        self._lost: set[asyncio.Future[Any]] = set()

    def __len__(self) -> int:
        return len(self._lost)

    def add(self, future: asyncio.Future[Any], stack: str) -> None:
        """`future` is done when the thread returns at last."""
        self._lost.add(future)
        future.add_done_callback(self._back)
        LOST_THREADS.inc()
        log.error(
            "a thread goes on although its run has ended: a plain function has to look at "
            "ctx.cancelled now and then, and what is given to asyncio.to_thread has to be short. "
            "Threads lost: %d, at most %d. It is here:\n%s",
            len(self._lost), self.most, stack,
        )  # fmt: skip
        if len(self._lost) > self.most:
            self._too_many()

    def _back(self, done: asyncio.Future[Any]) -> None:
        if not done.cancelled():
            done.exception()  # whatever it raises now is nobody's; unread, it would be reported
        self._lost.discard(done)
        LOST_THREADS.dec()
