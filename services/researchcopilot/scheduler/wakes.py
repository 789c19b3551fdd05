"""Wake-ups: listens where scripts and the api say that something is due earlier than was known.

Hints, like everything in Redis: while nobody can listen, `due` looks more often, and ticks are seen
at the next fallback. When the connection is back everything is looked at once.
"""

import asyncio
import contextlib
import logging

from researchcopilot.core.backoff import reconnect_delays
from researchcopilot.core.errors import Unavailable
from researchcopilot.runtime.loop import Stop
from researchcopilot.scheduler.due import DueMover
from researchcopilot.scheduler.ticks import TickLoop
from researchcopilot.storage.queue import SCHEDULES, WAKE, Queue

log = logging.getLogger(__name__)
_QUEUE = "queue:"
LEAVE_S = 2.0


async def listen(redis: Queue, due: DueMover, ticks: TickLoop, stop: Stop) -> None:
    """Until asked to stop; then it rings once more, so that nobody sleeps on."""
    hearing = asyncio.create_task(_hear(redis, due, ticks, stop))
    try:
        await stop.asked.wait()
    finally:
        due.alarm.ring()
        ticks.alarm.ring()
        hearing.cancel()
        # Not without end: a cancellation that comes as a time-out of the client ends may be lost.
        await asyncio.wait((hearing,), timeout=LEAVE_S)


async def _hear(redis: Queue, due: DueMover, ticks: TickLoop, stop: Stop) -> None:
    delays = reconnect_delays()
    while not stop.is_set:
        try:
            async with contextlib.aclosing(redis.published(WAKE)) as told:
                async for what in told:
                    if due.deaf:
                        due.deaf = False
                        delays = reconnect_delays()
                        due.wake_all()
                        ticks.alarm.ring()
                    _ring(what, due, ticks)
                    if stop.asked.is_set():
                        return
        except Unavailable as error:
            log.info("wake-ups are not heard: %s", error)
        except Exception:
            log.exception("listening for wake-ups failed; it is tried again")
        due.deaf = True
        await asyncio.sleep(next(delays))


def _ring(what: str | None, due: DueMover, ticks: TickLoop) -> None:
    if what is None:
        return
    if what == SCHEDULES:
        ticks.alarm.ring()
    elif what.startswith(_QUEUE):
        due.wake(what.removeprefix(_QUEUE))
