"""`python -m researchcopilot janitor`: every duty in a loop of its own, until SIGTERM."""

import asyncio
import os
from collections.abc import Awaitable, Callable

from researchcopilot.core.errors import ConfigError
from researchcopilot.janitor.deadlines import expire
from researchcopilot.janitor.delayed import add_due_soon
from researchcopilot.janitor.depths import Depths
from researchcopilot.janitor.entries import clear_dead
from researchcopilot.janitor.leases import Leases
from researchcopilot.janitor.memories import expire_memories
from researchcopilot.janitor.no_agent import count_without_agent
from researchcopilot.janitor.parked import free_forgotten
from researchcopilot.janitor.probes import find_lost
from researchcopilot.janitor.rebuild import check_redis
from researchcopilot.janitor.retention import Retention
from researchcopilot.runtime import duties as told
from researchcopilot.runtime.loop import Beat, every, run
from researchcopilot.service import Service, serve, watch_servers
from researchcopilot.storage.lock import Locks
from researchcopilot.storage.returning import Returning
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
        told.succeeded(name)

    def failed(name: str) -> None:
        beat.mark()
        told.failed(name)

    returning = Returning(service.redis, service.stop, service.settings.recovery.spread_s)
    locks = Locks(service.settings.redis)
    known = duties(service, returning, locks)
    for name, _, _ in known:
        told.begins(name)
    await asyncio.gather(
        watch_servers(service),
        *(
            every(seconds, duty, service.stop, name=name, done=succeeded, failed=failed)
            for name, seconds, duty in known
        ),
    )
    await returning.close()
    await locks.close()


def duties(
    service: Service, returning: Returning, locks: Locks
) -> list[tuple[str, float, Callable[[], Awaitable[object]]]]:
    """(name, seconds between rounds, what to do)."""
    db, redis, recovery = service.db, service.redis, service.settings.recovery
    leases = Leases(db, redis, recovery, returning)
    queues = service.settings.worker.queues
    depths = Depths(db, redis, lease_s=recovery.lease_s, queues=queues)
    service.health.pages.append(depths.answer)
    return [
        ("redis", recovery.sweep_s, lambda: check_redis(db, redis)),
        ("leases", recovery.sweep_s, leases.sweep),
        ("entries", recovery.sweep_s, lambda: clear_dead(db, redis, recovery)),
        ("deadlines", recovery.sweep_s, lambda: expire(db, redis)),
        ("probes", recovery.probe_s, lambda: find_lost(db, redis, recovery)),
        ("delayed", 60.0, lambda: add_due_soon(db, redis)),
        ("parked", 60.0, lambda: free_forgotten(db, redis)),
        ("no_agent", 3 * recovery.sweep_s, lambda: count_without_agent(db)),
        (
            "retention",
            service.settings.retention.sweep_s,
            Retention(db, service.settings.retention, service.stop).sweep,
        ),
        (
            "expire_memories",
            service.settings.jobs.memory_sweep_s,
            lambda: expire_memories(db, locks),
        ),
        ("workers", 3600.0, lambda: prune_workers(db)),
        ("depths", recovery.sweep_s, depths.measure),
        ("totals", 3 * recovery.sweep_s, depths.measure_rarely),
    ]
