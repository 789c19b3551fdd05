"""`python -m researchcopilot api`: the process. Starts, waits for the schema, serves, drains.

On SIGTERM: not ready, no new connections, requests under way are finished (who waits for a run is
told how it stands), submits under way are committed, exit 0. A second signal does not wait.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

from researchcopilot import __version__
from researchcopilot.agents.catalogue import Catalogue
from researchcopilot.agents.new_runs import Door
from researchcopilot.api import openapi
from researchcopilot.api.app import App
from researchcopilot.api.auth import Keys
from researchcopilot.api.operations import Services
from researchcopilot.api.render import dump
from researchcopilot.api.routes import OPERATIONS
from researchcopilot.api.server import Server
from researchcopilot.api.watch import Watcher
from researchcopilot.core.errors import Unavailable
from researchcopilot.core.settings import Settings, load
from researchcopilot.runtime import build
from researchcopilot.runtime import log as logs
from researchcopilot.runtime.health import Health, write_ports
from researchcopilot.runtime.listen import bind
from researchcopilot.runtime.loop import Beat, Stop, run, until_available
from researchcopilot.storage.checks import check_postgres
from researchcopilot.storage.db import Database
from researchcopilot.storage.migrate import check_schema
from researchcopilot.storage.pool_metrics import watch_pool
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.runs import RunReader
from researchcopilot.storage.submit import Submitter

log = logging.getLogger(__name__)
# Nobody is served longer than a request may hold (?wait ends at once when we drain).
GRACE_S = 20.0
BEAT_S = 1.0


def main(argv: list[str]) -> int:
    argparse.ArgumentParser(
        prog="researchcopilot api",
        description="Accepts runs over HTTP and answers. Settings come from the environment: "
        "see `researchcopilot settings`.",
    ).parse_args(argv)
    settings = load(os.environ)
    logs.setup(settings.log.level, settings.log.format)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return run(serve(settings))


async def serve(settings: Settings) -> int:
    """Until a signal. Raises ConfigError if a port cannot be had."""
    stop, beat = Stop(), Beat()
    stop.listen()
    waits = {"start": "waits for the database schema"}
    bound = bind(settings.api.host, settings.api.port, "RC_API")
    health = _health(settings, stop, beat, waits)
    health.start(settings.health.host, settings.health.port)
    write_ports(settings.health.port_file, health=health.port)  # so that /readyz can say why
    beating = asyncio.create_task(_keep_beating(beat))
    try:
        async with open_services(settings) as services:

            async def attempt() -> None:
                try:
                    await check_postgres(services.db)
                    await check_schema(services.db)
                except Unavailable as error:
                    waits["start"] = f"waits: {error}"
                    raise

            if await until_available(attempt, stop, what="the database schema"):
                await _answer(settings, services, bound, Started(health, waits), stop)
    finally:
        beating.cancel()
        health.stop()
        bound.close()
    return 0


def _health(settings: Settings, stop: Stop, beat: Beat, waits: dict[str, str]) -> Health:
    def blocked() -> str | None:
        stale = beat.age > settings.health.stale_s
        return f"the event loop is blocked for {beat.age:.0f} s" if stale else None

    health = Health()
    health.live["loop"] = blocked
    health.ready["start"] = lambda: waits.get("start")
    health.ready["stop"] = lambda: "draining" if stop.is_set else None
    return health


async def _keep_beating(beat: Beat) -> None:
    while True:
        beat.mark()
        await asyncio.sleep(BEAT_S)


@contextlib.asynccontextmanager
async def open_services(settings: Settings) -> AsyncIterator[Services]:
    """The database, the queue and what the requests share; closed in the reverse order."""
    db, queue = Database(settings.database), Queue(settings.redis)
    build.tell("api", __version__)
    watch_pool(db)
    await db.open()
    await queue.open()
    services = Services(
        db=db,
        submitter=Submitter(db, queue, max_waiting=settings.api.max_waiting),
        read_run=RunReader(db, max_waiting=settings.api.max_waiting),
        settings=settings.api,
        keys=Keys(db),
        door=Door(Catalogue(db), settings.api.max_input_bytes),
        watcher=Watcher(db),
        openapi=dump(openapi.document(OPERATIONS)),
    )
    watching = asyncio.create_task(services.watcher.run())
    try:
        yield services
    finally:
        watching.cancel()
        await services.read_run.close()
        await services.submitter.close()
        await queue.close()
        await db.close()


@dataclass(frozen=True, slots=True)
class Started:
    """Tells everybody who waits that the api listens."""

    health: Health
    waits: dict[str, str]

    def tell(self, settings: Settings, port: int) -> None:
        write_ports(settings.health.port_file, health=self.health.port, api=port)
        self.waits.clear()
        log.info("the api listens on http://%s:%d", settings.api.host, port)


async def _answer(
    settings: Settings, services: Services, bound: socket.socket, started: Started, stop: Stop
) -> None:
    port = bound.getsockname()[1]
    server = Server(
        App(services, OPERATIONS),
        bound,
        grace_s=GRACE_S,
        started=lambda: started.tell(settings, port),
        draining=services.watcher.close,
    )
    telling = asyncio.create_task(_tell(server, stop))
    try:
        await server.run_until_told()
    finally:
        telling.cancel()
    log.info("the api has drained")


async def _tell(server: Server, stop: Stop) -> None:
    await stop.asked.wait()
    log.info("draining: no new connections, requests under way are finished")
    server.should_exit = True
    await stop.insisted.wait()
    server.force_exit = True
