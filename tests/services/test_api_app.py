"""The app from inside: what only happens when something is broken, full or slow."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psycopg
import pytest
from starlette.responses import Response
from tests.conftest import Servers
from tests.services.api_server import metric, problem, register, stage, until
from tests.support import new_run, prompt

from researchcopilot.api import bodies
from researchcopilot.api.app import App
from researchcopilot.api.main import open_services
from researchcopilot.api.operations import Answer, Call, Operation, Services
from researchcopilot.api.problems import Problem
from researchcopilot.api.routes import OPERATIONS
from researchcopilot.core.models import Submission
from researchcopilot.core.settings import Settings
from researchcopilot.storage import keys

pytestmark = pytest.mark.anyio


@pytest.fixture
async def services(settings: Settings, anyio_backend: str) -> AsyncIterator[Services]:
    async with open_services(settings) as opened:
        yield opened


async def test_a_stop_pushes_what_was_committed(settings: Settings) -> None:
    """Protects: a 202 that was given in the last moment is in its queue when the api has gone, and
    has not to be found by a probe. Red without api/main.py: `await services.submitter.close()`
    """
    run = new_run()
    with prompt(settings) as client:
        async with open_services(settings) as services:
            client.execute_command("CLIENT", "PAUSE", "5000", "WRITE")
            await services.submitter(Submission((run,)))
            assert client.lrange("queue:runs", 0, -1) == []
            # Redis takes it once the stop is under way, and not before.
            loop = asyncio.get_running_loop()
            loop.call_later(0.2, client.execute_command, "CLIENT", "UNPAUSE")
        assert client.lrange("queue:runs", 0, -1) == [f"1.{run.run_id}"]


async def broken(call: Call) -> Response:
    """An operation with a fault of ours."""
    raise ZeroDivisionError("the secret of the house")


async def test_a_fault_of_ours_is_a_500_without_its_text(
    services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    """Protects: the client gets an id, the log gets the trace under it, and nothing leaks."""
    operation = Operation("GET", "/broken", broken, "", {200: Answer("")}, key=False)
    transport = httpx.ASGITransport(App(services, [operation]))
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        answer = await client.get("/broken")
    body = problem(answer, 500, "internal")
    assert "secret" not in answer.text
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert vars(record)["request_id"] == body["request_id"]
    assert record.exc_info


async def test_what_is_accepted_is_the_same_through_the_app(services: Services) -> None:
    """Protects: a client that is cancelled in the middle of a submit leaves a whole run or none."""
    await register(services.db)
    key, _ = await keys.create(services.db, workspace="default", name="")
    transport = httpx.ASGITransport(App(services, OPERATIONS))
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://api", headers=headers
    ) as client:
        posts = [
            asyncio.ensure_future(client.post("/v1/runs", json={"input": number}))
            for number in range(20)
        ]
        await asyncio.sleep(0)
        for number, post in enumerate(posts):
            if number % 2:
                post.cancel()
        answers = await asyncio.gather(*posts, return_exceptions=True)
    accepted = [a.json()["run_id"] for a in answers if isinstance(a, httpx.Response)]
    assert len(accepted) == 10
    [(runs, messages)] = await services.db.rows(
        b"SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM messages WHERE role = 'user')"
    )
    assert runs == messages >= 10


PAST = {"agent": "echo", "input": 1, "deadline": "2020-01-01T00:00:00Z"}
REFUSED: dict[str, tuple[Any, int]] = {
    "/v1/runs": ({"input": [1] * 1_300_000}, 413),
    "/v1/runs:batch": ({"runs": [PAST] * 1000}, 422),
}


@pytest.mark.parametrize("where", REFUSED)
async def test_a_large_body_lets_others_have_their_turn(services: Services, where: str) -> None:
    """Protects: understanding and checking megabytes of it never holds the loop for their whole
    time: it goes on in a thread, and between two runs of a batch."""
    await register(services.db)
    key, _ = await keys.create(services.db, workspace="default", name="")
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    headers = {"Authorization": f"Bearer {key}"}
    transport = httpx.ASGITransport(App(services, OPERATIONS))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://api", headers=headers
    ) as client:
        assert (await client.post("/v1/runs", json=PAST)).status_code == 422  # all is known now
        turning = asyncio.create_task(turn())
        said, status = REFUSED[where]
        answer = await client.post(where, json=said)
        turning.cancel()
    assert answer.status_code == status, answer.text
    assert turns > 500


async def test_a_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects: slow senders do not stay for ever."""
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.05)
    messages: list[Any] = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Event().wait()

    with pytest.raises(Problem) as caught:
        await bodies.read({"headers": []}, receive, 100)
    assert (caught.value.status, caught.value.headers["Connection"]) == (408, "close")


def test_a_full_line_is_a_503_at_once(servers: Servers) -> None:
    """Protects: a database that cannot keep up is told to clients, not piled up in memory."""
    with stage(servers) as here, ThreadPoolExecutor(8) as pool:
        api = here.start(RC_API_MAX_WAITING="1")
        with api.client() as client:
            assert client.post("/v1/runs", json={"input": 0}).status_code == 202
            with psycopg.connect(here.database_url) as lock:
                lock.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
                # One group is held by the lock, one member may wait, and the line is full.
                posts = [pool.submit(client.post, "/v1/runs", json={"input": n}) for n in range(8)]
                until(lambda: sum(post.done() for post in posts) >= 5)
            answers = [post.result(20) for post in posts]
    refused = [answer for answer in answers if answer.status_code != 202]
    assert 5 <= len(refused) <= 7
    for answer in refused:
        problem(answer, 503, "busy")
        assert answer.headers["retry-after"] == "1"


def test_a_client_that_hangs_up_in_its_body_leaves_nothing(servers: Servers) -> None:
    """Protects: half a body makes no run and no error of ours, and is counted as 499."""
    with stage(servers) as here:
        api = here.start()
        with socket.create_connection(("127.0.0.1", api.part.ports["api"]), 10) as raw:
            head = f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {here.key}\r\n"
            raw.sendall((head + 'Content-Length: 100\r\n\r\n{"input"').encode())
        name = 'researchcopilot_api_requests_total{method="POST",route="/v1/runs",status="499"}'
        until(lambda: metric(api, name) == 1)
        assert here.count(b"SELECT count(*) FROM runs") == 0
        assert "Traceback" not in api.part.child.tail(100)


def test_requests_are_counted_by_route_and_not_by_path(servers: Servers) -> None:
    """Protects: ids make no series; a scan of odd paths makes one."""
    with stage(servers) as here:
        api = here.start(RC_LOG_LEVEL="debug", RC_LOG_FORMAT="json")
        with api.client() as client:
            for number in range(3):
                client.get(f"/odd/{number}")
                client.get(f"/v1/runs/00000000-0000-0000-0000-00000000000{number}")
        total = "researchcopilot_api_requests_total"
        route = "/v1/runs/{run_id}"
        count = "researchcopilot_api_request_seconds_count"
        # The last one is counted when its answer has been sent.
        until(lambda: metric(api, f'{count}{{method="GET",route="{route}"}}') == 3)
        assert metric(api, f'{total}{{method="GET",route="unknown",status="404"}}') == 3
        assert metric(api, f'{total}{{method="GET",route="{route}",status="404"}}') == 3
        lines = [json.loads(line) for line in api.part.child.tail(50).splitlines()]
        [line] = [line for line in lines if line["message"] == "GET /odd/1 404"]
        assert {"ms", "request_id", "route"} <= line.keys()
