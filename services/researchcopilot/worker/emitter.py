"""Emits: grouped, with little patience. Progress that cannot be told is dropped and counted; it
never fails a run, and it never holds one up for more than a moment."""

import asyncio
from collections.abc import Sequence

from researchcopilot.core.errors import Busy, Unavailable
from researchcopilot.runtime.batch import Group, Limits
from researchcopilot.storage.events import Event, append
from researchcopilot.storage.queue import Queue
from researchcopilot.worker.metrics import EMITS_LOST

# A Redis that answers nothing at all is not heard of before its time-out, which is longer.
MOMENT_S = 2.0


class Emitter:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._group: Group[Event, None] = Group(
            self._send,
            again=lambda error: isinstance(error, Unavailable),
            limits=Limits(patience_s=1.0),
            name="emit",
        )

    async def emit(self, event: Event) -> None:
        try:
            async with asyncio.timeout(MOMENT_S):
                await self._group(event)
        except (Unavailable, Busy, TimeoutError):
            EMITS_LOST.inc()

    async def _send(self, events: Sequence[Event]) -> list[None]:
        await append(self._queue, events)
        return [None] * len(events)
