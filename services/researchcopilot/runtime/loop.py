"""Loops that end on signals: every part of the house runs until it is told to stop.

The first SIGTERM or SIGINT asks (`stopping`), the second insists (`stopped_hard`). A duty that
fails is logged, counted and tried again on its next beat: an upkeep loop never dies of one error.
"""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn

from researchcopilot.core.backoff import reconnect_delays
from researchcopilot.core.errors import Unavailable

log = logging.getLogger(__name__)
ROUND_S = 3.0  # what a round under way may take when its part is asked to stop
LEAVE_S = 1.0  # what is left over when a part has ended may take so long


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
    """Run `duty` each `seconds` until stopped; a round that hangs then is given up after a moment.
    `done` and `failed` are told its name."""
    while not stop.is_set:
        try:
            if not await unless_stopped(duty, stop, ROUND_S):
                log.warning("%s is left in the middle of its round", name)
                return
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
            if not await unless_stopped(attempt, stop, 0.0):
                return False
        except Unavailable as error:
            log.warning("waiting for %s: %s", what, error)
        else:
            return True
        if await stop.wait(delay):
            break
    return False


async def unless_stopped(call: Callable[[], Awaitable[Any]], stop: Stop, grace_s: float) -> bool:
    """Await `call()`. False: asked to stop, it was not through `grace_s` later; it is cancelled."""
    task = asyncio.ensure_future(call())
    asked = asyncio.ensure_future(stop.asked.wait())
    try:
        await asyncio.wait((task, asked), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await asyncio.wait((task,), timeout=grace_s)
        if not task.done():
            return False
        task.result()
        return True
    finally:
        asked.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=ROUND_S)


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run a part's main coroutine, on uvloop where it is installed; its exit code.

    What is still under way when it has returned (a task that swallows its cancellation, a thread
    of the loop's pool) is waited for only a moment: a part that was told to stop has to stop.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        code = runner.run(main)
        timer = threading.Timer(LEAVE_S, leave, (code,))
        timer.daemon = True
        timer.start()
    timer.cancel()
    return code


def leave(code: int) -> NoReturn:
    """End the process without waiting for anybody. Whatever has to be closed has been closed."""
    log.warning("the process ends without the tasks and threads that go on in it")
    logging.shutdown()
    os._exit(code)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
