"""Runs over HTTP: read, held until they end, listed. A real process, real servers."""

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from tests.conftest import Servers
from tests.services.api_server import WORKER_ID, Api, Stage, metric, problem, stage, submit, until

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Message
from researchcopilot.storage import moves
from researchcopilot.storage import runs as stored
from researchcopilot.storage.db import Database


@pytest.fixture(scope="module")
def here(servers: Servers) -> Iterator[Stage]:
    with stage(servers) as made:
        yield made


@pytest.fixture(scope="module")
def api(here: Stage) -> Api:
    return here.start()


@pytest.fixture
def client(api: Api) -> Iterator[httpx.Client]:
    with api.client() as opened:
        yield opened


def test_wait_holds_until_the_end(client: httpx.Client, here: Stage) -> None:
    """Protects: ?wait answers within moments of the end, with the result, and is final."""
    run = submit(client)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(client.get, run["links"]["self"], params={"wait": 30})
        until(lambda: watched(here) == 1)
        ended = time.monotonic()
        here.finish(run["run_id"])
        answer = held.result(20)
    assert time.monotonic() - ended < 5
    assert answer.json()["status"] == "succeeded"
    assert answer.json()["result"] == {"answer": "42"}
    assert "retry-after" not in answer.headers
    until(lambda: watched(here) == 0)


def test_wait_gives_up_when_its_time_is_over(client: httpx.Client) -> None:
    """Protects: a run that goes on is a 200 that says so, with Retry-After."""
    run = submit(client)
    answer = client.get(run["links"]["self"], params={"wait": 0.2})
    assert (answer.status_code, answer.json()["status"]) == (200, "queued")
    assert answer.headers["retry-after"] == "1"


def test_a_client_that_hangs_up_drops_its_watch(client: httpx.Client, here: Stage) -> None:
    """Protects: clients that go away leave nothing behind that is asked for again and again."""
    run = submit(client)
    with pytest.raises(httpx.ReadTimeout):
        client.get(run["links"]["self"], params={"wait": 60}, timeout=0.3)
    until(lambda: watched(here) == 0)
    hung_up = '{method="GET",route="/v1/runs/{run_id}",status="499"}'
    api = Api(here.parts[0], here)
    until(lambda: metric(api, "researchcopilot_api_requests_total" + hung_up) == 1)


def test_waiting_costs_no_connection(servers: Servers) -> None:
    """Protects: two hundred clients that wait leave a pool of two connections free for others."""
    with stage(servers) as own, ThreadPoolExecutor(200) as pool:
        small = own.start(RC_DATABASE_POOL="2")
        with small.client(limits=httpx.Limits(max_connections=300)) as client:
            runs = [submit(client, agent="echo") for _ in range(4)]
            path = runs[0]["links"]["self"]
            held = [pool.submit(client.get, path, params={"wait": 60}) for _ in range(200)]
            until(lambda: metric(small, "researchcopilot_api_waiting_requests") == 200)
            for run in runs[1:]:
                assert client.get(run["links"]["self"]).status_code == 200
                assert submit(client)["status"] == "queued"
            assert 1 <= own.connections() <= 2
            own.finish(runs[0]["run_id"])
            assert {answer.result(20).json()["status"] for answer in held} == {"succeeded"}


def watched(here: Stage) -> int:
    """Runs that the first process watches, as its metrics say."""
    return int(metric(Api(here.parts[0], here), "researchcopilot_api_watched_runs"))


def test_etag_saves_the_body(client: httpx.Client, here: Stage) -> None:
    """Protects: a poller that has the run already gets 304; a change gives another tag."""
    run = submit(client)
    path = run["links"]["self"]
    tag = client.get(path).headers["etag"]
    answer = client.get(path, headers={"If-None-Match": f'"other", W/{tag}'})
    assert (answer.status_code, answer.content) == (304, b"")
    here.finish(run["run_id"], "failed")
    answer = client.get(path, headers={"If-None-Match": tag})
    assert answer.status_code == 200
    assert answer.json()["status"] == "failed"
    assert answer.json()["error"]["message"] == "it broke"


def test_head_is_get_without_a_body(client: httpx.Client) -> None:
    """Protects: HEAD works wherever GET does."""
    run = submit(client)
    for path in (run["links"]["self"], "/v1/runs", run["links"]["messages"], "/v1/agents", "/"):
        got, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == got.headers["content-length"]


def test_pages_are_complete_and_without_repetition(client: httpx.Client) -> None:
    """Protects: a list that grows while it is read shows each older run exactly once."""
    session_id = str(uuid.uuid4())
    path = f"/v1/sessions/{session_id}/runs"
    made = [client.post(path, json={"input": n}).json()["run_id"] for n in range(7)]
    seen: list[str] = []
    url = f"/v1/runs?session_id={session_id}&limit=3"
    for expected in (3, 3, 1):
        answer = client.get(url)
        page = answer.json()
        assert len(page["data"]) == expected
        seen += [run["run_id"] for run in page["data"]]
        client.post(path, json={"input": "later"})
        if page["next_cursor"]:
            url = answer.links["next"]["url"]
            assert page["next_cursor"] in url
    assert page["next_cursor"] is None
    assert "link" not in answer.headers
    assert seen == made[::-1]


def test_filters_restrict_a_list(client: httpx.Client, here: Stage) -> None:
    """Protects: each filter does what it says, alone and together."""
    session_id = str(uuid.uuid4())
    old = submit(client, session_id=session_id, agent="echo", queue="system")
    new = submit(client, session_id=session_id)
    here.finish(old["run_id"])

    def found(**query: Any) -> list[str]:
        answer = client.get("/v1/runs", params={"session_id": session_id, **query})
        assert answer.status_code == 200, answer.text
        return [run["run_id"] for run in answer.json()["data"]]

    assert found() == [new["run_id"], old["run_id"]]
    assert found(status="succeeded") == found(agent="echo") == found(queue="system")
    assert found(status="succeeded") == [old["run_id"]]
    assert found(status="running") == []
    assert found(created_after=old["created_at"]) == [new["run_id"]]
    assert found(created_before=new["created_at"]) == [old["run_id"]]
    assert found(created_after=old["created_at"], status="succeeded") == []
    listed = client.get("/v1/runs", params={"session_id": session_id}).json()["data"][0]
    assert "input" not in listed
    assert "result" not in listed


def test_a_conversation_is_read_in_order(client: httpx.Client, here: Stage) -> None:
    """Protects: question and answer of each run, oldest first, page by page."""
    session_id = str(uuid.uuid4())
    for text in ("first", "second"):
        run = submit(client, input=text, session_id=session_id)
        here.finish(run["run_id"])
    url = f"/v1/sessions/{session_id}/messages?limit=3"
    answer = client.get(url)
    lines = answer.json()["data"] + client.get(answer.links["next"]["url"]).json()["data"]
    assert [(line["role"], line["payload"]["content"]) for line in lines] == [
        ("user", "first"),
        ("assistant", "42"),
        ("user", "second"),
        ("assistant", "42"),
    ]
    problem(client.get(f"/v1/sessions/{uuid.uuid4()}/messages"), 404, "not_found")


def test_heavy_messages_make_short_pages(here: Stage) -> None:
    """Protects: a page of large answers ends before it fills the memory, and misses nothing."""
    session_id = new_id()

    async def fill(db: Database) -> list[Message]:
        await db.execute(
            b"WITH s AS (INSERT INTO sessions (session_id, workspace_id) VALUES (%(s)s::uuid, 1) "
            b"RETURNING session_id) INSERT INTO messages (workspace_id, session_id, run_id, role, "
            b"payload) SELECT 1, session_id, gen_random_uuid(), 'user', "
            b"jsonb_build_object('content', repeat('x', 1000000)) FROM s, generate_series(1, 10)",
            {"s": session_id},
        )
        return await stored.messages(db, 1, session_id, limit=200)

    assert 1 <= len(here.run(fill)) < 10
    with Api(here.parts[0], here).client() as client:
        url, seen = f"/v1/sessions/{session_id}/messages", 0
        while url:
            answer = client.get(url)
            seen += len(answer.json()["data"])
            url = answer.links.get("next", {}).get("url", "")
    assert seen == 10


def test_agents_are_those_that_workers_registered(client: httpx.Client) -> None:
    """Protects: a developer sees what can be asked for, and its schema."""
    found = client.get("/v1/agents").json()["data"]
    assert [agent["name"] for agent in found] == ["echo", "rebuild_index", "research", "words"]
    assert [agent["input_schema"] for agent in found] == [None, None, None, {"type": "string"}]


def test_a_claimed_run_says_who_has_it(client: httpx.Client, here: Stage) -> None:
    """Protects: attempts, worker and start are seen while it runs."""
    run = submit(client)

    async def claim(db: Database) -> None:
        await moves.claim(db, [run["run_id"]], worker_id=WORKER_ID, claim_id=new_id(), lease_s=60)

    here.run(claim)
    now = client.get(run["links"]["self"]).json()
    assert (now["status"], now["attempts"], now["worker_id"]) == ("running", 1, WORKER_ID)
    assert now["started_at"] is not None
