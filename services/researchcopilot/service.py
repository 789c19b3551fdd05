"""What every part of the house does around its work: settings, logs, health, servers, signals.

async def work(service): ...          # until service.stop is asked
run(serve("janitor", os.environ, work))
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from researchcopilot import __version__
from researchcopilot.core.errors import LoginRefused, Unavailable
from researchcopilot.core.settings import Settings, load
from researchcopilot.runtime import build
from researchcopilot.runtime import log as logs
from researchcopilot.runtime.health import Health, write_ports
from researchcopilot.runtime.loop import Beat, Stop, every, until_available
from researchcopilot.storage.checks import check_postgres, check_redis
from researchcopilot.storage.db import Database
from researchcopilot.storage.migrate import check_schema
from researchcopilot.storage.pool_metrics import watch_pool
from researchcopilot.storage.queue import Queue

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Service:
    """The open ends that a part works with."""

    settings: Settings
    db: Database
    redis: Queue
    health: Health
    stop: Stop


async def ready(service: Service, *, redis_first: bool) -> None:
    """Are the servers there, fit for us, and of our schema? Raises Unavailable, ConfigError."""
    await check_postgres(service.db)
    await check_schema(service.db)
    try:
        await check_redis(service.redis)
    except Unavailable as error:
        # A Redis that is away comes back. A login that is refused is somebody's mistake, and a Pod
        # that is ready with it would let a roll-out go on and replace those that work.
        if redis_first or isinstance(error, LoginRefused):
            raise
        log.warning("starts all the same: %s", error)


async def watch_servers(service: Service) -> None:
    """Ask both servers until stopped; /readyz names one that has not answered for two leases. For
    parts whose own work does not tell: a duty may fail for a reason of its own."""
    lease_s = service.settings.recovery.lease_s

    async def watch(name: str, title: str, ask: Callable[[], Awaitable[object]]) -> None:
        beat, said = Beat(), [f"{title} does not answer"]
        service.health.ready[name] = lambda: (
            f"{said[0]} ({beat.age:.0f} s)" if beat.age > 2 * lease_s else None
        )

        async def asked() -> None:
            try:
                await ask()
            except Unavailable as error:
                said[0] = str(error)
                raise

        await every(lease_s / 3, asked, service.stop, name=name, done=lambda _: beat.mark())

    await asyncio.gather(
        watch("postgres", "Postgres", lambda: check_postgres(service.db)),
        watch("redis", "Redis", service.redis.ping),
    )


async def serve(
    part: str,
    environ: Mapping[str, str],
    work: Callable[[Service], Awaitable[int | None]],
    *,
    redis_first: bool = True,
) -> int:
    """Run one part until it is told to stop; its exit code (what `work` returns, None is 0). Waits
    for the servers, and says so.

    `redis_first` False: the part has work to do also while Redis is away.
    """
    settings = load(environ)
    logs.setup(settings.log.level, settings.log.format)
    logs.bind_process(part=part)
    stop = Stop()
    stop.listen()
    health = Health()
    waiting = {"schema": "waiting for Postgres and its schema"}
    health.ready["schema"] = lambda: waiting.get("schema")
    health.start(settings.health.host, settings.health.port)
    service = Service(settings, Database(settings.database), Queue(settings.redis), health, stop)
    log.info("%s %s starts, health on port %d", part, __version__, health.port)
    write_ports(settings.health.port_file, health=health.port)

    async def attempt() -> None:
        try:
            await ready(service, redis_first=redis_first)
        except Unavailable as error:
            waiting["schema"] = f"waits: {error}"
            raise

    build.tell(part, __version__)
    watch_pool(service.db)
    await service.db.open()
    code = 0
    try:
        if await until_available(attempt, stop, what="the servers"):
            # Not before `work` has added its own checks, which it does before it first waits.
            asyncio.get_running_loop().call_soon(waiting.clear)
            code = await work(service) or 0
    finally:
        await service.db.close()
        await service.redis.close()
        health.stop()
    log.info("%s stops", part)
    return code
