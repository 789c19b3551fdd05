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


async def listen(redis: Queue, due: DueMover, ticks: TickLoop, stop: Stop) -> None:
    """Until asked to stop; then it rings once more, so that nobody sleeps on."""
    hearing = asyncio.create_task(_hear_for_ever(redis, due, ticks))
    try:
        await stop.asked.wait()
    finally:
        hearing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await hearing
        due.alarm.ring()
        ticks.alarm.ring()


async def _hear_for_ever(redis: Queue, due: DueMover, ticks: TickLoop) -> None:
    delays = reconnect_delays()
    while True:
        try:
            async with contextlib.aclosing(redis.published(WAKE)) as told:
                async for what in told:
                    if due.deaf:
                        due.deaf = False
                        delays = reconnect_delays()
                        due.wake_all()
                        ticks.alarm.ring()
                    _ring(what, due, ticks)
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
