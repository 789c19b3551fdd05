"""Objects of ours and the operator as the process that it is, killed with SIGKILL in the middle of
them."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import psycopg
import pytest
import redis
from aiohttp import web
from tests.conftest import Parts
from tests.operator.cluster import NAMESPACE, Json, Served, kubeconfig
from tests.operator.customs import RUNS, SCHEDULES, Customs
from tests.operator.rude import listed, rude
from tests.services import truths
from tests.services.scraping import wrong_gauges
from tests.support import echo, eventually, working

from researchcopilot.core.ids import new_id
from researchcopilot.core.settings import Settings
from researchcopilot.dev.parts import Part
from researchcopilot.dev.processes import until
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio
Operator = Callable[..., Awaitable[Part]]
EACH = 20
HOURLY = {"input": 1, "agent": "echo", "intervalSeconds": 3600}


@pytest.fixture
def operator(parts: Parts, cluster: tuple[Served, Customs], tmp_path: Path) -> Operator:
    """Starts one more, which finds the API server by its kubeconfig."""
    config = tmp_path / "kubeconfig"
    config.write_text(cluster[0].kubeconfig())

    async def start(**environment: str) -> Part:
        environment = {"KUBECONFIG": str(config), **environment}
        return await asyncio.to_thread(parts, "operator", **environment)

    return start


async def test_killed_in_the_middle_it_makes_each_run_once(
    operator: Operator,
    settings: Settings,
    db: Database,
    queue: Queue,
    api: Customs,
    parts: Parts,
) -> None:
    """Two processes, one of which dies in the middle of twenty new objects; then the other; a third
    finds what went while nobody looked. Every object ends with one run, and nothing else has
    any."""
    names = [f"run-{number}" for number in range(2 * EACH)]
    async with working(settings, db, queue, {"echo": echo}):
        first, second = await asyncio.gather(operator(), operator())
        for number, name in enumerate(names):
            await api.kubectl_apply(RUNS, name, {"input": number, "agent": "echo"})
            if number == EACH:
                await eventually(lambda: len(api.written) > EACH // 2)
                first.kill()
        await api.kubectl_apply(SCHEDULES, "hourly", HOURLY)
        await eventually(lambda: "scheduleId" in api.status("hourly", SCHEDULES), 20)
        second.kill()
        await api.kubectl_delete(SCHEDULES, "hourly")
        await operator()
        await asyncio.to_thread(parts, "janitor")  # finds what was committed and not pushed
        for name in names:
            await eventually(partial(has_succeeded, api, name), 20)
        await eventually(partial(is_empty, db, b"SELECT 1 FROM schedules WHERE NOT system"))
    inputs = await db.rows(b"SELECT input, status FROM runs ORDER BY input::int")
    assert inputs == [(number, "succeeded") for number in range(len(names))]
    shown = {api.status(name)["runId"] for name in names}
    assert len(shown) == len(names)


async def test_what_it_tells_is_the_truth(
    operator: Operator,
    settings: Settings,
    db: Database,
    queue: Queue,
    api: Customs,
    parts: Parts,
) -> None:
    """Every gauge that the operator exposes, as those of the other parts."""
    async with working(settings, db, queue, {"echo": echo}):  # so that somebody has the agent
        part = await operator(RC_DATABASE_POOL=str(truths.CONNECTIONS))
        for number in range(3):
            await api.kubectl_apply(RUNS, f"run-{number}", {"input": number, "agent": "echo"})
        await api.kubectl_apply(SCHEDULES, "hourly", HOURLY)
        await eventually(partial(has_succeeded, api, "run-2"), 20)
    with (
        psycopg.connect(parts.environment["RC_DATABASE_URL"], autocommit=True) as rows,
        redis.Redis.from_url(parts.environment["RC_REDIS_URL"], decode_responses=True) as client,
    ):
        world = truths.World(rows, client, [part])
        found: list[str] = []

        def all_true() -> bool:
            found[:] = wrong_gauges(world)
            return not found

        assert await asyncio.to_thread(until, all_true, 20), "\n".join(found)


async def test_an_object_that_is_nested_as_deep_as_a_cluster_takes_it_stops_no_other(
    settings: Settings, db: Database, queue: Queue, parts: Parts, tmp_path: Path
) -> None:
    """Whoever may apply one could else keep the lists and watches of everybody from being read."""
    deep = '{"x":' * 9_990 + "1" + "}" * 9_990
    shown: dict[str, Json] = {}
    told = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            name = request.path.split("/")[-2]
            shown[name] = {**shown.get(name, {}), **(await request.json())["status"]}
            return web.json_response({})
        if "watch" in request.query:
            await told.wait()
        return listed(*(both if request.path.endswith("/researchruns") else ()))

    both = [an_object("deep", deep), an_object("good", "1")]
    async with working(settings, db, queue, {"echo": echo}), rude(answer) as server:
        config = tmp_path / "kubeconfig"
        config.write_text(kubeconfig(server.url))
        await asyncio.to_thread(parts, "operator", KUBECONFIG=str(config))
        await eventually(lambda: shown.get("good", {}).get("phase") == "Succeeded", 20)
        await eventually(lambda: "deep" in shown)
        told.set()
    assert shown["deep"]["message"] == "spec.input is nested deeper than 32 levels."


def an_object(name: str, given: str) -> str:
    meta = f'{{"name": "{name}", "namespace": "{NAMESPACE}", "uid": "{new_id()}", "generation": 1}}'
    return f'{{"metadata": {meta}, "spec": {{"agent": "echo", "input": {given}}}}}'


def has_succeeded(api: Customs, name: str) -> bool:
    return api.status(name).get("phase") == "Succeeded"


async def is_empty(db: Database, query: bytes) -> bool:
    return await db.rows(query) == []
