"""`python -m researchcopilot janitor`: every duty in a loop of its own, until SIGTERM."""

import asyncio
import os
from collections.abc import Awaitable, Callable

from researchcopilot.core.errors import ConfigError
from researchcopilot.janitor.deadlines import expire
from researchcopilot.janitor.delayed import add_due_soon
from researchcopilot.janitor.entries import clear_dead
from researchcopilot.janitor.leases import Leases
from researchcopilot.janitor.metrics import FAILED, LAST_SUCCESS
from researchcopilot.janitor.probes import find_lost
from researchcopilot.janitor.rebuild import check_redis
from researchcopilot.janitor.retention import remove_old
from researchcopilot.runtime.loop import Beat, every, run
from researchcopilot.service import Service, serve
from researchcopilot.storage.workers import prune_workers


def main(argv: list[str]) -> int:
    if argv:
        raise ConfigError(f"janitor takes no arguments (got {argv[0]!r}); see `settings`.")
    return run(serve("janitor", os.environ, work, redis_first=False))


async def work(service: Service) -> None:
    beat = Beat()
    stale = service.settings.health.stale_s
    service.health.live["duties"] = lambda: (
        f"no duty has succeeded or failed for {beat.age:.0f} s" if beat.age > stale else None
    )

    def succeeded(name: str) -> None:
        beat.mark()
        LAST_SUCCESS.labels(name).set_to_current_time()

    def failed(name: str) -> None:
        beat.mark()
        FAILED.labels(name).inc()

    await asyncio.gather(
        *(
            every(seconds, duty, service.stop, name=name, done=succeeded, failed=failed)
            for name, seconds, duty in duties(service)
        )
    )


def duties(service: Service) -> list[tuple[str, float, Callable[[], Awaitable[object]]]]:
    """(name, seconds between rounds, what to do)."""
    db, redis, recovery = service.db, service.redis, service.settings.recovery
    leases = Leases(db, redis, recovery)
    return [
        ("redis", recovery.sweep_s, lambda: check_redis(db, redis)),
        ("leases", recovery.sweep_s, leases.sweep),
        ("entries", recovery.sweep_s, lambda: clear_dead(db, redis, recovery)),
        ("deadlines", recovery.sweep_s, lambda: expire(db, redis)),
        ("probes", recovery.probe_s, lambda: find_lost(db, redis, recovery)),
        ("delayed", 60.0, lambda: add_due_soon(db, redis)),
        (
            "retention",
            service.settings.retention.sweep_s,
            lambda: remove_old(db, service.settings.retention, service.stop),
        ),
        ("workers", 3600.0, lambda: prune_workers(db)),
    ]
