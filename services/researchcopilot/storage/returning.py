"""Runs that were taken back, on their way to the head of their queue: the first few at once, the
rest over some seconds, so that a thousand do not start in one instant when a node has died.

It is the push that is spread, not the run: `run_at` stays, since a delayed run comes back at the
tail, behind all that was submitted after it. Pushed oldest first; who holds its session's turn
holds it meanwhile. Who dies on the way leaves lost pushes, which the probe finds.
"""

import asyncio
import logging
import random
from collections.abc import Sequence
from itertools import groupby

from prometheus_client import Gauge

from researchcopilot.core.errors import Unavailable
from researchcopilot.core.models import Due
from researchcopilot.runtime.loop import Stop
from researchcopilot.storage.queue import Queue

log = logging.getLogger(__name__)
RETURNING = Gauge(
    "researchcopilot_reclaimed_waiting", "Runs taken back that are on their way to the head"
)
AT_ONCE = 50
PAUSE_S = 0.1


class Returning:
    """`spread_s`: the last of a sweep has been pushed after about so long."""

    def __init__(self, redis: Queue, stop: Stop, spread_s: float) -> None:
        self._redis = redis
        self._stop = stop
        self._spread_s = spread_s
        self._tasks: set[asyncio.Task[None]] = set()

    async def push(self, hints: Sequence[Due]) -> None:
        """The first to the head now, the rest in the background. Raises Unavailable."""
        await self._push(hints[:AT_ONCE])
        if rest := hints[AT_ONCE:]:
            task = asyncio.create_task(self._trickle(rest))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """After `stop` was asked: what is left goes now."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _trickle(self, hints: Sequence[Due]) -> None:
        size = -(-len(hints) // max(1, round(self._spread_s / PAUSE_S)))
        RETURNING.inc(len(hints))
        done = 0
        try:
            while done < len(hints):
                if await self._stop.wait(PAUSE_S * (0.5 + random.random())):
                    size = len(hints)
                await self._push(hints[done : done + size])
                RETURNING.dec(min(size, len(hints) - done))
                done += size
        except Unavailable as error:
            log.warning("%d runs that were taken back are left to the probe: %s",
                        len(hints) - done, error)  # fmt: skip
        finally:
            RETURNING.dec(max(0, len(hints) - done))

    async def _push(self, hints: Sequence[Due]) -> None:
        ordered = sorted(hints, key=lambda hint: hint.queue)
        for queue, members in groupby(ordered, key=lambda hint: hint.queue):
            await self._redis.push_head(queue, [hint.entry for hint in members])
