"""Loops that end on signals: every part of the house runs until it is told to stop.

The first SIGTERM or SIGINT asks (`stopping`), the second insists (`stopped_hard`). A duty that
fails is logged, counted and tried again on its next beat: an upkeep loop never dies of one error.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from researchcopilot.core.backoff import reconnect_delays
from researchcopilot.core.errors import Unavailable

log = logging.getLogger(__name__)


class Stop:
    """Asked once: stop taking work. Asked twice: drop what is in hand, now."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()

    def __call__(self) -> None:
        (self.insisted if self.asked.is_set() else self.asked).set()

    @property
    def is_set(self) -> bool:
        return self.asked.is_set()

    def listen(self) -> None:
        """Let SIGTERM and SIGINT of this process ask."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self)

    async def wait(self, seconds: float) -> bool:
        """Pause for `seconds`, shorter if asked to stop; True if asked."""
        try:
            await asyncio.wait_for(self.asked.wait(), seconds)
        except TimeoutError:
            return False
        return True


class Beat:
    """When something last succeeded, readable from any thread (monotonic seconds)."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def mark(self) -> None:
        self._last = time.monotonic()

    @property
    def age(self) -> float:
        return time.monotonic() - self._last


async def every(
    seconds: float,
    duty: Callable[[], Awaitable[Any]],
    stop: Stop,
    *,
    name: str,
    failed: Callable[[str], None] = lambda name: None,
    done: Callable[[str], None] = lambda name: None,
) -> None:
    """Run `duty` each `seconds` until stopped. `done` and `failed` are told its name."""
    while not stop.is_set:
        try:
            await duty()
        except Unavailable as error:
            failed(name)
            log.warning("%s waits for a server: %s", name, error)
        except Exception:
            failed(name)
            log.exception("%s failed; it is tried again in %g s", name, seconds)
        else:
            done(name)
        await stop.wait(seconds)


async def until_available(attempt: Callable[[], Awaitable[Any]], stop: Stop, *, what: str) -> bool:
    """Repeat `attempt` while it raises Unavailable. False if asked to stop before it worked."""
    for delay in reconnect_delays():
        try:
            await attempt()
        except Unavailable as error:
            log.warning("waiting for %s: %s", what, error)
        else:
            return True
        if await stop.wait(delay):
            break
    return False


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run a part's main coroutine, on uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
