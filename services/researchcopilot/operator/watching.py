"""kopf, inside our own loop: its settings, and running it until we are told to stop.

kopf ends when an error of the API server is more than it can ride out (a watch that answers with an
error, rights that are missing for a minute). That must not end the operator: it is started again,
with growing pauses, and /livez tells if nobody has heard of the API server for too long.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import kopf

from researchcopilot.core.backoff import reconnect_delays
from researchcopilot.operator.kube import Credentials, open_session
from researchcopilot.operator.metrics import RESTARTS
from researchcopilot.operator.watches import SILENT_S, WATCH_LASTS_S, Watches
from researchcopilot.runtime.loop import Beat, Stop

log = logging.getLogger(__name__)
KOPFS = str(Path(kopf.__file__).parent)
PAGE = 500
# A task of kopf's own that it forgets when it ends by itself, and then waits for.
WAITER = "stop-flag waiter"
# Ran for so long: what ended it now is not what ended it before.
WELL_S = 60.0


def kopf_settings(
    labels: Mapping[str, str], fields: Mapping[str, str] | None = None
) -> kopf.OperatorSettings:
    """`labels`, `fields`: kind → selectors by which the API server filters. Nothing is written but
    what a handler writes: no Events out of logs, no peering, no annotations."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True  # else it wants to list namespaces and CRDs of the cluster
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = 5.0
    settings.networking.error_backoffs = (1, 1, 2, 3, 5, 8)
    settings.watching.server_timeout = WATCH_LASTS_S
    settings.watching.inactivity_timeout = SILENT_S
    settings.watching.connect_timeout = 5.0
    settings.watching.chunk_size = PAGE
    for kind, selector in labels.items():
        settings.watching.label_selectors[kind] = selector
    for kind, selector in (fields or {}).items():
        settings.watching.field_selectors[kind] = selector
    return settings


def add_login(registry: kopf.OperatorRegistry, find: Credentials, watches: Watches) -> None:
    """Give kopf a session of its own, which it closes; on which `watches` listens."""
    asked = Beat()
    first = True

    @kopf.on.login(registry=registry, id="login")
    async def login(**_: Any) -> kopf.AiohttpSession:
        nonlocal first
        if not first and asked.age < 1.0:  # it was refused just now: not in circles
            await asyncio.sleep(1.0)
        first = False
        asked.mark()
        return open_session(find(), watches)


async def watch(
    registry: kopf.OperatorRegistry,
    settings: kopf.OperatorSettings,
    stop: Stop,
    *,
    namespaces: Collection[str] = (),
) -> None:
    """Run kopf until `stop` is asked; in these namespaces, or cluster-wide without any."""
    delays = reconnect_delays()
    while not stop.is_set:
        began = Beat()
        try:
            await _run_once(registry, settings, stop, namespaces)
        except Exception as error:
            RESTARTS.inc()
            log.error("watching ended and is started again: %s: %s", type(error).__name__, error)
        if began.age > WELL_S:
            delays = reconnect_delays()
        if await stop.wait(next(delays)):
            return


async def _run_once(
    registry: kopf.OperatorRegistry,
    settings: kopf.OperatorSettings,
    stop: Stop,
    namespaces: Collection[str],
) -> None:
    ours = NotKopfs()
    tasks = await kopf.spawn_tasks(
        registry=registry,
        settings=settings,
        clusterwide=not namespaces,
        namespaces=list(namespaces),
        stop_flag=stop.asked,
    )
    stop.listen()  # kopf has put itself in our place
    try:
        await kopf.run_tasks(tasks, ignored=ours)
    finally:
        for task in asyncio.all_tasks():
            if task.get_name() == WAITER:
                task.cancel()


class NotKopfs(Collection["asyncio.Task[Any]"]):
    """At its end kopf cancels every task of the loop that is not in here. Those of ours may have
    come into being long after kopf was started, so this looks at whose code they run, too."""

    def __init__(self) -> None:
        self._before = asyncio.all_tasks()

    def __contains__(self, task: object) -> bool:
        if task in self._before or getattr(task, "get_name", str)() == WAITER:
            return True
        code = getattr(getattr(task, "get_coro", lambda: None)(), "cr_code", None)
        return code is None or not code.co_filename.startswith(KOPFS)

    def __iter__(self) -> Iterator["asyncio.Task[Any]"]:
        return (task for task in asyncio.all_tasks() if task in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)
