"""`python -m researchcopilot worker`: settings, health, servers, then the worker until SIGTERM."""

import asyncio
import contextlib
import os
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from researchcopilot import __version__
from researchcopilot.agents.registry import Agent, load_agents
from researchcopilot.core.errors import ConfigError
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import WorkerInfo
from researchcopilot.core.settings import Settings
from researchcopilot.runtime import log
from researchcopilot.runtime.loop import leave, run
from researchcopilot.service import Service, serve
from researchcopilot.worker.calls import contain_tasks
from researchcopilot.worker.take import Taker
from researchcopilot.worker.worker import Worker

MAIN = threading.main_thread()


def main(argv: list[str]) -> int:
    if argv:
        raise ConfigError(f"worker takes no arguments (got {argv[0]!r}); see `settings`.")
    code = run(serve("worker", os.environ, work))
    if any(not thread.daemon for thread in threading.enumerate() if thread is not MAIN):
        leave(code)  # an agent's own threads, which Python would wait for
    return code


async def work(service: Service) -> int:
    settings = service.settings
    agents = load_agents()
    info = describe(settings, agents)
    log.bind_process(worker_id=info.worker_id)
    contain_tasks(asyncio.get_running_loop())
    with cache_folder(settings.worker.cache_dir) as folder:
        worker = Worker(
            settings,
            info,
            agents,
            db=service.db,
            redis=service.redis,
            cache_dir=folder,
            stop=service.stop,
        )
        watch(service, worker)
        await worker.run()
        return worker.exit_code


def describe(settings: Settings, agents: Mapping[str, Agent]) -> WorkerInfo:
    """Who this process start is: never the Pod's name alone, which a restart keeps."""
    return WorkerInfo(
        worker_id=new_id(),
        queues=settings.worker.queues,
        agents=tuple(agent.info for agent in agents.values()),
        host=socket.gethostname(),
        pid=os.getpid(),
        version=__version__,
        pod=settings.worker.pod or None,
        pod_uid=settings.worker.pod_uid or None,
        pod_namespace=settings.worker.pod_namespace or None,
        process_started_at=datetime.now(UTC),
    )


def watch(service: Service, worker: Worker) -> None:
    """Live: each queue is being taken from. Ready: registered, and both servers answer."""
    stale = service.settings.health.stale_s
    lease = service.settings.recovery.lease_s
    for taker in worker.takers:
        service.health.live[f"take {taker.queue}"] = partial(_stuck, taker, stale)
    service.health.ready["registered"] = lambda: None if worker.registered else "not yet"
    service.health.ready["leases"] = lambda: (
        "Postgres does not renew" if worker.renewal.renewed.age > 2 * lease else None
    )
    service.health.ready["redis"] = lambda: (
        "Redis does not answer" if worker.redis_beat.age > 2 * lease else None
    )


def _stuck(taker: Taker, stale_s: float) -> str | None:
    age = taker.beat.age
    return f"no take for {age:.0f} s" if age > stale_s else None


@contextlib.contextmanager
def cache_folder(path: str) -> Iterator[Path]:
    """RC_CACHE_DIR, or a temporary folder that goes with the process."""
    if path:
        folder = Path(path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"RC_CACHE_DIR={path!r} cannot be used: {error.strerror}.") from error
        yield folder
    else:
        with tempfile.TemporaryDirectory(prefix="researchcopilot-") as name:
            yield Path(name)
