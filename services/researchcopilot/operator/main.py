"""`python -m researchcopilot operator`: watches worker Pods and objects of ours, until SIGTERM."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

import kopf

from researchcopilot.core.errors import ConfigError
from researchcopilot.operator.announce import Announcer
from researchcopilot.operator.context import Context
from researchcopilot.operator.deletion_cost import DeletionCost
from researchcopilot.operator.kube import Credentials, Kube, credentials, read_deep
from researchcopilot.operator.metrics import WATCH_AGE
from researchcopilot.operator.pods import register_pods
from researchcopilot.operator.projection import Projection
from researchcopilot.operator.recovery import Recovery
from researchcopilot.operator.research_runs import ResearchRuns
from researchcopilot.operator.run_schedules import RunSchedules
from researchcopilot.operator.silent import Silent
from researchcopilot.operator.watches import Watches
from researchcopilot.operator.watching import add_login, kopf_settings, watch
from researchcopilot.runtime.loop import ROUND_S, every, run
from researchcopilot.service import Service, serve
from researchcopilot.storage.submit import Submitter

log = logging.getLogger(__name__)


def main(argv: list[str]) -> int:
    if argv:
        raise ConfigError(f"operator takes no arguments (got {argv[0]!r}); see `settings`.")
    # kopf tells of each event at INFO; what matters of it we tell ourselves.
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    read_deep()
    return run(serve("operator", os.environ, work, redis_first=False))


async def work(service: Service, find: Credentials = credentials) -> None:
    settings = service.settings.operator
    namespace = settings.namespace or find().default_namespace
    if not namespace:
        raise ConfigError(
            "RC_OPERATOR_NAMESPACE is not given, and there is no service account that has one. "
            "Name the namespace that the workers are in."
        )
    watches = attend(service)
    async with opened(service, namespace, find) as context:
        announcer = Announcer(context.kube)
        recovery = Recovery(context, announcer)
        cost = DeletionCost(context) if settings.deletion_cost else None
        registry = kopf.OperatorRegistry()
        add_login(registry, find, watches)
        register_pods(registry, context, recovery, cost)
        projections: list[Projection[Any]] = []
        if settings.custom_resources:
            projections += [
                Projection(context, ResearchRuns(context)),
                Projection(context, RunSchedules(context)),
            ]
        for projection in projections:
            projection.register(registry)
        await asyncio.gather(
            watch(
                registry,
                kopf_settings(
                    {"pods": settings.selector},
                    {"pods": f"metadata.namespace={namespace}"} if settings.cluster_wide else {},
                ),
                service.stop,
                namespaces=() if settings.cluster_wide else (namespace,),
            ),
            recovery.run(service.stop),
            announcer.run(service.stop),
            *duties(context, recovery, cost),
            *(projection.run(service.stop) for projection in projections),
        )


def duties(
    context: Context, recovery: Recovery, cost: DeletionCost | None
) -> Iterator[Coroutine[None, None, None]]:
    """What is looked at again and again, beside what the cluster tells by itself."""
    settings, stop = context.settings, context.stop
    look = Silent(context, recovery).look
    yield every(settings.recovery.lease_s / 3, look, stop, name="silent workers")
    if cost is not None:
        seconds = settings.operator.deletion_cost_s
        yield every(seconds, cost.write, stop, name="deletion costs")


def attend(service: Service) -> Watches:
    """Ready: Pods were listed. Live: the API server answers."""

    def show(kind: str) -> None:
        WATCH_AGE.labels(kind).set_function(lambda: watches.age(kind))

    watches = Watches("pods", found=show)
    show("pods")
    limit = service.settings.operator.watch_limit_s
    service.health.ready["pods"] = lambda: watches.waits_for("pods")
    service.health.live["watch"] = lambda: watches.stale(limit)
    return watches


@contextlib.asynccontextmanager
async def opened(service: Service, namespace: str, find: Credentials) -> AsyncIterator[Context]:
    submitter = Submitter(service.db, service.redis)
    kube = Kube(find)
    try:
        yield Context(
            service.settings,
            namespace,
            service.db,
            service.redis,
            submitter,
            kube,
            service.stop,
        )
    finally:
        with contextlib.suppress(TimeoutError):  # what is not pushed by then is found by the probe
            await asyncio.wait_for(submitter.close(), ROUND_S)
        await kube.close()
