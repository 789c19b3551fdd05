"""Push: after a commit, the hint to Redis. In the background, grouped, and never a reason to fail.

A Redis that is away is tried for a minute; then the hint is given up, since the row is the truth:
the janitor's probe finds queued runs that stand in no list.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from itertools import groupby
from typing import Any

from researchcopilot.core.errors import Busy, Unavailable
from researchcopilot.core.models import Due
from researchcopilot.runtime.batch import Group, Limits
from researchcopilot.storage.moves import Moved
from researchcopilot.storage.queue import Queue

log = logging.getLogger(__name__)


class Pusher:
    """Sends hints of one process in groups; `close` waits for those under way."""

    def __init__(self, queue: Queue, patience_s: float = 60.0) -> None:
        self._queue = queue
        self._group: Group[Sequence[Due], None] = Group(
            self._send,
            again=lambda error: isinstance(error, Unavailable),
            limits=Limits(max_rows=1000, max_waiting=20_000, patience_s=patience_s),
            name="push",
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self.given_up = 0

    def push(self, hints: Sequence[Due]) -> None:
        """Start to push, in the order given; does not wait."""
        if hints:
            self._start(self._deliver(hints))

    def tell(self, asked: Sequence[tuple[str, str]]) -> None:
        """Tell workers at once that runs of theirs were asked to stop: (worker_id, run_id).

        Whom this does not reach is told by its next renewal.
        """
        if asked:
            self._start(self._tell(asked))

    def wake(self, what: str) -> None:
        """Wake who sleeps until something of this is due: it is due earlier now."""
        self._start(self._wake(what))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wake(self, what: str) -> None:
        try:
            await self._queue.wake(what)
        except Unavailable as error:
            log.info("nobody was woken for %s; they look by themselves: %s", what, error)

    async def _tell(self, asked: Sequence[tuple[str, str]]) -> None:
        try:
            await self._queue.tell(asked)
        except Unavailable as error:
            log.info("%d cancellations wait for the next renewal: %s", len(asked), error)

    async def close(self, limit_s: float = 2.0) -> None:
        """Wait for what is under way, at most so long: the janitor finds the rest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)
        for task in self._tasks:
            task.cancel()

    async def _deliver(self, hints: Sequence[Due]) -> None:
        try:
            await self._group(hints, rows=len(hints))
        except (Unavailable, Busy) as error:
            self.given_up += len(hints)
            log.warning("%d pushes are left to the janitor: %s", len(hints), error)

    async def _send(self, groups: Sequence[Sequence[Due]]) -> list[None]:
        hints = [hint for group in groups for hint in group]
        now = sorted((h for h in hints if h.delay_s <= 0), key=lambda hint: hint.queue)
        for queue, due in groupby(now, key=lambda hint: hint.queue):
            await self._queue.push(queue, [hint.entry for hint in due])
        later = sorted((h for h in hints if h.delay_s > 0), key=lambda hint: hint.queue)
        for queue, due in groupby(later, key=lambda hint: hint.queue):
            await self._queue.delay(queue, [(hint.entry, hint.delay_s) for hint in due])
        return [None] * len(groups)


async def push_moved(redis: Queue, moved: Moved) -> None:
    """What a sweep has moved: taken back to the head, unparked to the tail. Raises Unavailable;
    then the probe finds them."""
    for hints, push in ((moved.head, redis.push_head), (moved.tail, redis.push)):
        ordered = sorted(hints, key=lambda hint: hint.queue)
        for queue, members in groupby(ordered, key=lambda hint: hint.queue):
            await push(queue, [hint.entry for hint in members])
