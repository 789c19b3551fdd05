"""`/openapi.json` tells the truth: the answers of a running server are held against it."""

import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry
from referencing.jsonschema import DRAFT202012
from tests.conftest import Servers
from tests.services.api_server import Api, Stage, stage

from researchcopilot.api.app import paths_of
from researchcopilot.api.routes import OPERATIONS

UNKNOWN = str(uuid.UUID(int=7))


@pytest.fixture(scope="module")
def here(servers: Servers) -> Iterator[Stage]:
    with stage(servers) as made:
        yield made


@pytest.fixture(scope="module")
def api(here: Stage) -> Api:
    return here.start()


@pytest.fixture(scope="module")
def document(api: Api) -> dict[str, Any]:
    with api.client("") as client:
        answer = client.get("/openapi.json")
        assert answer.headers["content-type"] == "application/json"
        found: dict[str, Any] = answer.json()
        return found


def check(document: dict[str, Any], template: str, answer: httpx.Response) -> None:
    """The answer is announced: its status, type, body and headers."""
    described = document["paths"][template][answer.request.method.lower()]
    announced = described["responses"].get(str(answer.status_code))
    assert announced, f"{answer.status_code} of {template} is not announced: {answer.text}"
    for name in announced.get("headers", {}):
        if name not in ("Link", "Idempotent-Replayed", "Retry-After"):
            assert name in answer.headers, name
    content = announced.get("content")
    if content is None:
        assert answer.content == b""
        return
    media = content[answer.headers["content-type"].removesuffix("; charset=utf-8")]
    if "$ref" not in media["schema"]:
        assert media["schema"] == {"type": "string"}
        return
    registry: Registry[Any] = Registry().with_resource(
        "urn:document", DRAFT202012.create_resource(document)
    )
    schema = {"$ref": "urn:document" + media["schema"]["$ref"]}
    Draft202012Validator(schema, registry=registry, format_checker=FormatChecker()).validate(
        answer.json()
    )


def test_routes_and_description_are_the_same(document: dict[str, Any]) -> None:
    """Protects: nothing is routed that is not described, and the reverse."""
    routed = {
        path.template: {method.lower() for method in path.methods if method != "HEAD"}
        for path in paths_of(OPERATIONS)
    }
    assert {path: set(methods) for path, methods in document["paths"].items()} == routed


def test_the_seeds_paths_are_described(document: dict[str, Any]) -> None:
    """Protects: the three paths of the book stay."""
    assert "post" in document["paths"]["/runs"]
    assert "post" in document["paths"]["/sessions/{session_id}/runs"]
    assert "get" in document["paths"]["/runs/{run_id}"]


def test_successes_are_as_described(here: Stage, api: Api, document: dict[str, Any]) -> None:
    """Protects: every success of every operation fits its schema, in each state of a run."""
    with api.client() as client:
        session = str(uuid.uuid4())
        body = {"input": {"q": 1}, "agent": "echo", "metadata": {"a": "b"}, "timeout_s": 5}
        run = client.post("/v1/runs", json={**body, "session_id": session})
        check(document, "/v1/runs", run)
        answer = client.post(f"/v1/sessions/{session}/runs", json=body)
        check(document, "/v1/sessions/{session_id}/runs", answer)
        answer = client.post("/v1/runs:batch", json={"runs": [body, body]})
        check(document, "/v1/runs:batch", answer)
        failed = answer.json()["data"][0]["run_id"]
        here.finish(failed, "failed")
        here.finish(run.json()["run_id"])
        for run_id in (run.json()["run_id"], failed, answer.json()["data"][1]["run_id"]):
            got = client.get(f"/v1/runs/{run_id}")
            check(document, "/v1/runs/{run_id}", got)
            headers = {"If-None-Match": got.headers["etag"]}
            check(document, "/v1/runs/{run_id}", client.get(f"/v1/runs/{run_id}", headers=headers))
        for limit in (1, 200):
            check(document, "/v1/runs", client.get(f"/v1/runs?limit={limit}"))
            answer = client.get(f"/v1/sessions/{session}/messages?limit={limit}")
            check(document, "/v1/sessions/{session_id}/messages", answer)
        check(document, "/v1/agents", client.get("/v1/agents"))
        for status in (201, 200):
            answer = client.post("/v1/documents", json={"name": "a.md", "text": "# A"})
            assert answer.status_code == status
            check(document, "/v1/documents", answer)
        answer = client.get(f"/v1/documents/{answer.json()['document_id']}")
        check(document, "/v1/documents/{document_id}", answer)
        check(document, "/v1/documents", client.get("/v1/documents"))
        for path in ("/", "/openapi.json"):
            check(document, path, client.get(path))


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_refusals_are_as_described(api: Api, document: dict[str, Any], operation: Any) -> None:
    """Protects: what an operation refuses is announced and is a problem document."""
    ids = ("run_id", "session_id", "document_id", "schedule_id", "report_id", "memory_id")
    path = operation.path.format(**dict.fromkeys(ids, UNKNOWN))
    bad = operation.path.format(**dict.fromkeys(ids, "x"))
    with api.client() as client, api.client("") as nobody:
        send: list[httpx.Response] = [client.request(operation.method, f"{bad}?nonsense=1")]
        if operation.key:
            send.append(nobody.request(operation.method, path))
        if operation.method == "POST":
            for content in (b"", b"{", b'{"x": 1}', b" " * 40_000_000):
                headers = {"Content-Type": "application/json"}
                send.append(client.post(path, content=content, headers=headers))
            send.append(client.post(path, data={"a": "b"}))
        elif "{" in operation.path:
            send.append(client.get(path))
        for answer in send:
            assert answer.status_code >= 400
            check(document, operation.path, answer)
