"""An alarm: sleep until something is due, and be woken when it is due earlier."""

import asyncio


class Alarm:
    """One sleeper. A ring that comes while it is awake ends its next sleep at once."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._rung.wait()
        except TimeoutError:
            pass
        self._rung.clear()
