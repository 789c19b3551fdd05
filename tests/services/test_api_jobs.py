"""Reports and memories over HTTP: read, paged, negotiated, forgotten; each in its workspace."""

import uuid
from collections.abc import Iterator

import httpx
import pytest
from tests.conftest import Servers
from tests.services.api_server import Api, Stage, problem, stage
from tests.services.job_rows import PAGE, remember, write_reports
from tests.services.test_api_openapi import check

from researchcopilot.api.reports import prefers_markdown
from researchcopilot.core.ids import new_id
from researchcopilot.storage.db import Database
from researchcopilot.storage.keys import workspace_id_of


@pytest.fixture(scope="module")
def here(servers: Servers) -> Iterator[Stage]:
    with stage(servers) as made:
        yield made


@pytest.fixture(scope="module")
def api(here: Stage) -> Api:
    return here.start()


@pytest.fixture
def workspace() -> str:
    return f"w-{uuid.uuid4()}"


@pytest.fixture
def client(api: Api, workspace: str) -> Iterator[httpx.Client]:
    """In a workspace of this test's own."""
    with api.client(api.stage.new_key(workspace)) as opened:
        yield opened


def test_reports_are_listed_without_and_read_with_their_page(
    client: httpx.Client, here: Stage, workspace: str
) -> None:
    """Protects: the latest period first, page by page; the whole report under its id."""
    write_reports(here, workspace, 5)
    answer = client.get("/v1/reports?limit=3")
    listed = answer.json()["data"]
    assert [one["title"] for one in listed] == ["日报 4", "日报 3", "日报 2"]
    assert not {"markdown", "data"} & set(listed[0])
    rest = client.get(answer.links["next"]["url"]).json()
    assert [one["title"] for one in rest["data"]] == ["日报 1", "日报 0"]
    assert rest["next_cursor"] is None
    full = client.get(listed[0]["links"]["self"])
    assert full.headers["content-type"] == "application/json"
    assert full.json() == {**listed[0], "markdown": PAGE, "data": {"runs": {"failed": 0}}}
    assert listed[0]["period_start"] == "2026-11-05T00:00:00Z"


def test_who_wants_markdown_gets_the_page(
    client: httpx.Client, here: Stage, workspace: str
) -> None:
    """Protects: the page by Accept, as text that a browser and a pipe can show."""
    write_reports(here, workspace, 1)
    [one] = client.get("/v1/reports").json()["data"]
    answer = client.get(one["links"]["self"], headers={"Accept": "text/markdown"})
    assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
    assert answer.headers["vary"] == "Accept"
    assert answer.text == PAGE


@pytest.mark.parametrize(
    ("accept", "markdown"),
    [
        (None, False),
        ("*/*", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("text/markdown", True),
        ("Text/Markdown; charset=utf-8", True),
        ("text/*", True),
        ("text/markdown;q=0.5, application/json", False),
        ("application/json;q=0.5, text/markdown;q=0.9", True),
        ("text/markdown;q=0, */*", False),
        ("application/json, text/*;q=0.1", False),
        ("nonsense;;;q=x,,", False),
    ],
)
def test_accept_is_read_as_rfc_9110_says(accept: str | None, markdown: bool) -> None:
    assert prefers_markdown(accept) is markdown


def test_memories_are_listed_read_and_forgotten(
    client: httpx.Client, here: Stage, workspace: str
) -> None:
    """Protects: pages also where all are equally old; a deleted one is gone at once, an expired
    one without anybody's help."""
    ids = remember(here, workspace, "one", "two", "three", "four", "five")
    remember(here, workspace, "expired", hours=-1)
    seen, url = [], "/v1/memories?limit=2"
    for expected in (2, 2, 1):
        answer = client.get(url)
        page = answer.json()["data"]
        assert len(page) == expected
        seen += [one["memory_id"] for one in page]
        url = answer.links.get("next", {}).get("url", "")
    assert sorted(seen) == sorted(ids)
    path = f"/v1/memories/{ids[0]}"
    assert client.get(path).json()["text"] == "one"
    gone = client.delete(path)
    assert (gone.status_code, gone.content) == (204, b"")
    for again in (client.delete(path), client.get(path)):
        problem(again, 404, "not_found")
    assert len(client.get("/v1/memories").json()["data"]) == 4


def test_another_workspace_sees_and_deletes_nothing(
    client: httpx.Client, here: Stage, api: Api, workspace: str
) -> None:
    """Protects: ids of another workspace are as good as none."""
    write_reports(here, workspace, 1)
    [memory_id] = remember(here, workspace, "ours")
    [report] = client.get("/v1/reports").json()["data"]
    with api.client(api.stage.new_key(f"w-{uuid.uuid4()}")) as other:
        assert other.get("/v1/reports").json()["data"] == []
        assert other.get("/v1/memories").json()["data"] == []
        problem(other.get(report["links"]["self"]), 404, "not_found")
        problem(other.get(f"/v1/memories/{memory_id}"), 404, "not_found")
        problem(other.delete(f"/v1/memories/{memory_id}"), 404, "not_found")
    assert client.get(f"/v1/memories/{memory_id}").status_code == 200


def test_bad_requests_name_what_is_wrong(client: httpx.Client) -> None:
    for path in ("/v1/reports", "/v1/memories"):
        assert problem(client.get(f"{path}?cursor=x"), 422, "bad_cursor")["errors"]
        [error] = problem(client.get(f"{path}?limit=0"), 422, "invalid")["errors"]
        assert error["field"] == "limit"
        problem(client.post(path, json={}), 405, "method_not_allowed")
    problem(client.get("/v1/reports/x"), 422, "invalid")
    problem(client.delete("/v1/memories/x"), 422, "invalid")


def test_successes_are_as_openapi_describes_them(
    client: httpx.Client, here: Stage, workspace: str
) -> None:
    """Protects: the description of these operations, both media types of a report included."""
    document = client.get("/openapi.json").json()
    write_reports(here, workspace, 1)
    [memory_id] = remember(here, workspace, "one")
    for path in ("/v1/reports", "/v1/memories"):
        check(document, path, client.get(path))
    report = client.get("/v1/reports").json()["data"][0]["links"]["self"]
    for accept in ("application/json", "text/markdown"):
        answer = client.get(report, headers={"Accept": accept})
        check(document, "/v1/reports/{report_id}", answer)
    for verb in (client.get, client.delete):
        check(document, "/v1/memories/{memory_id}", verb(f"/v1/memories/{memory_id}"))


def test_a_digest_is_a_line_of_the_conversation(
    client: httpx.Client, here: Stage, workspace: str
) -> None:
    """Protects: messages show it, and openapi knows its role."""
    session_id, run_id = str(uuid.uuid4()), new_id()
    run = client.post(f"/v1/sessions/{session_id}/runs", json={"input": "why?", "agent": "echo"})
    assert run.status_code == 202

    async def work(db: Database) -> None:
        await db.execute(
            b"INSERT INTO messages (workspace_id, session_id, run_id, role, payload) VALUES"
            b" (%(w)s, %(s)s, %(r)s, 'digest', '{\"content\": \"so\"}')",
            {"w": await workspace_id_of(db, workspace), "s": session_id, "r": run_id},
        )

    here.run(work)
    answer = client.get(f"/v1/sessions/{session_id}/messages")
    assert [line["role"] for line in answer.json()["data"]] == ["user", "digest"]
    document = client.get("/openapi.json").json()
    check(document, "/v1/sessions/{session_id}/messages", answer)
