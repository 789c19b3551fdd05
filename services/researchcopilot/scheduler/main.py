"""`python -m researchcopilot scheduler`: moves due entries until SIGTERM."""

import os

from researchcopilot.core.errors import ConfigError
from researchcopilot.runtime.loop import run
from researchcopilot.scheduler.due import DueMover
from researchcopilot.service import Service, serve


def main(argv: list[str]) -> int:
    if argv:
        raise ConfigError(f"scheduler takes no arguments (got {argv[0]!r}); see `settings`.")
    return run(serve("scheduler", os.environ, work))


async def work(service: Service) -> None:
    mover = DueMover(service.db, service.redis, service.stop)
    stale = service.settings.health.stale_s
    service.health.live["due"] = lambda: (
        f"no round for {mover.beat.age:.0f} s" if mover.beat.age > stale else None
    )
    await mover.run()
