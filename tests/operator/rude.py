"""Something that answers where an API server should: what it says to lists, watches and writes is
up to the test, byte by byte; of discovery it tells what an API server would.

    async with rude(answer) as server:
        ... server.credentials(), server.asked
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import kopf
from aiohttp import web
from tests.operator.cluster import NAMESPACE

from researchcopilot.operator.objects import GROUP, VERSION

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
VERBS = ["list", "watch", "get", "patch"]


@dataclass
class Rude:
    """`asked`: when (monotonic), and what, of all but discovery."""

    url: str = ""
    asked: list[tuple[float, web.Request]] = field(default_factory=list)

    def credentials(self) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=self.url, default_namespace=NAMESPACE)

    def watched(self, kind: str) -> list[float]:
        """When watches of it were asked for."""
        return [
            at
            for at, request in self.asked
            if "watch" in request.query and request.path.endswith(f"/{kind}")
        ]


def kinds(**plurals: str) -> dict[str, Any]:
    return {
        "resources": [
            {"name": plural, "kind": kind, "singularName": "", "namespaced": True, "verbs": VERBS}
            for plural, kind in plurals.items()
        ]
    }


DISCOVERY = {
    "/api": {"versions": ["v1"]},
    "/apis": {
        "groups": [
            {
                "name": GROUP,
                "preferredVersion": {"version": VERSION},
                "versions": [{"version": VERSION}],
            }
        ]
    },
    "/api/v1": kinds(pods="Pod", namespaces="Namespace"),
    f"/apis/{GROUP}/{VERSION}": kinds(researchruns="ResearchRun", runschedules="RunSchedule"),
}


@asynccontextmanager
async def rude(answer: Answer) -> AsyncIterator[Rude]:
    found = Rude()

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path in DISCOVERY:
            return web.json_response(DISCOVERY[request.path])
        found.asked.append((time.monotonic(), request))
        return await answer(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield found
    finally:
        await runner.cleanup()


def as_json(text: str) -> web.Response:
    return web.Response(text=text, content_type="application/json")


def listed(*items: str) -> web.Response:
    """A list of these objects, each as JSON."""
    text = (
        '{"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": [%s]}'
    )
    return as_json(text % ",".join(items))
