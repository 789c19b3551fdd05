"""Slots: how many runs of one queue a worker executes at once. A slot is free when its finish has
committed, not before: an entry is never taken into hands that are full."""

import asyncio

from researchcopilot.worker.metrics import SLOTS


class Slots:
    def __init__(self, queue: str, total: int) -> None:
        self.total = total
        self.free = total
        self._freed = asyncio.Event()
        self._freed.set()
        self._busy = SLOTS.labels(queue, "busy")
        self._idle = SLOTS.labels(queue, "idle")
        self._tell()

    def use(self) -> None:
        self.free -= 1
        if self.free <= 0:
            self._freed.clear()
        self._tell()

    def give_back(self) -> None:
        self.free += 1
        self._freed.set()
        self._tell()

    def _tell(self) -> None:
        self._busy.set(self.total - self.free)
        self._idle.set(self.free)

    async def one_free(self) -> None:
        await self._freed.wait()
