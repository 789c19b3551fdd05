"""`python -m researchcopilot operator`: watches worker Pods and objects of ours, until SIGTERM."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import kopf

from researchcopilot.core.errors import ConfigError
from researchcopilot.operator.context import Context
from researchcopilot.operator.kube import Credentials, Kube, credentials
from researchcopilot.operator.metrics import WATCH_AGE
from researchcopilot.operator.pods import register_pods
from researchcopilot.operator.research_runs import register_research_runs
from researchcopilot.operator.run_schedules import register_run_schedules
from researchcopilot.operator.watches import Watches
from researchcopilot.operator.watching import add_login, kopf_settings, watch
from researchcopilot.runtime.loop import run
from researchcopilot.service import Service, serve
from researchcopilot.storage.submit import Submitter

log = logging.getLogger(__name__)


def main(argv: list[str]) -> int:
    if argv:
        raise ConfigError(f"operator takes no arguments (got {argv[0]!r}); see `settings`.")
    # kopf tells of each event at INFO; what matters of it we tell ourselves.
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    return run(serve("operator", os.environ, work, redis_first=False))


async def work(service: Service, find: Credentials = credentials) -> None:
    settings = service.settings.operator
    namespace = settings.namespace or find().default_namespace
    if not namespace:
        raise ConfigError(
            "RC_OPERATOR_NAMESPACE is not given, and there is no service account that has one. "
            "Name the namespace that the workers are in."
        )
    watches = Watches("pods")
    attend(service, watches)
    async with opened(service, namespace, find) as context:
        registry = kopf.OperatorRegistry()
        add_login(registry, find, watches)
        register_pods(registry, context)
        if settings.custom_resources:
            register_research_runs(registry, context)
            register_run_schedules(registry, context)
        await watch(
            registry,
            kopf_settings({"pods": settings.selector}),
            service.stop,
            namespaces=() if settings.cluster_wide else (namespace,),
        )


def attend(service: Service, watches: Watches) -> None:
    """Ready: Pods were listed. Live: the API server answers."""
    limit = service.settings.operator.watch_limit_s
    service.health.ready["pods"] = lambda: watches.waits_for("pods")
    service.health.live["watch"] = lambda: watches.stale(limit)
    WATCH_AGE.labels("pods").set_function(lambda: watches.age("pods"))


@asynccontextmanager
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
        async with asyncio.timeout(3):
            await submitter.close()
        await kube.close()
