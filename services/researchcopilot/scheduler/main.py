"""`python -m researchcopilot scheduler`: due entries and ticks, until SIGTERM."""

import asyncio
import os

from researchcopilot.core.errors import ConfigError
from researchcopilot.core.schedules import SYSTEM
from researchcopilot.runtime import duties
from researchcopilot.runtime.loop import Beat, every, run
from researchcopilot.scheduler.due import DueMover
from researchcopilot.scheduler.ticks import TickLoop
from researchcopilot.scheduler.wakes import listen
from researchcopilot.service import Service, serve, watch_servers
from researchcopilot.storage import schedules
from researchcopilot.storage.lock import Locks
from researchcopilot.storage.push import Pusher

# How soon a new workspace has the product's own schedules.
SYSTEM_S = 30.0


def main(argv: list[str]) -> int:
    if argv:
        raise ConfigError(f"scheduler takes no arguments (got {argv[0]!r}); see `settings`.")
    # Ticks are fired also while Redis is away: the runs are queued, and pushed later.
    return run(serve("scheduler", os.environ, work, redis_first=False))


async def work(service: Service) -> None:
    locks = Locks(service.settings.redis, service.db)
    pusher = Pusher(service.redis)
    due = DueMover(service.db, service.redis, service.stop)
    ticks = TickLoop(service.db, locks, pusher, service.stop)
    watch(service, "due", due.beat)
    watch(service, "ticks", ticks.beat)
    duties.begins("system_schedules")
    try:
        await asyncio.gather(
            due.run(),
            ticks.run(),
            watch_servers(service),
            listen(service.redis, due, ticks, service.stop),
            every(
                SYSTEM_S,
                lambda: schedules.ensure_system(service.db, SYSTEM),
                service.stop,
                name="system_schedules",
                done=duties.succeeded,
                failed=duties.failed,
            ),
        )
    finally:
        await pusher.close()
        await locks.close()


def watch(service: Service, name: str, beat: Beat) -> None:
    """Live while its rounds come, whatever comes of them."""
    stale = service.settings.health.stale_s
    service.health.live[name] = lambda: (
        f"no round for {beat.age:.0f} s" if beat.age > stale else None
    )
