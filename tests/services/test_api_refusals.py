"""What the api refuses, seen from outside: a problem document, never a 5xx, nothing kept."""

import json
import socket
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as effort
from hypothesis import strategies as st
from tests.conftest import Servers
from tests.services.api_server import Api, Stage, problem, register, stage, until
from tests.services.bad_requests import BAD, JSON, MAX_BODY, MAX_INPUT, SESSION, UNKNOWN
from tests.services.job_rows import remember, write_reports

from researchcopilot.agents.new_runs import NEW_RUN
from researchcopilot.api.routes import OPERATIONS
from researchcopilot.storage import keys
from researchcopilot.storage.db import Database


@pytest.fixture(scope="module")
def here(servers: Servers) -> Iterator[Stage]:
    with stage(servers) as made:
        yield made


@pytest.fixture(scope="module")
def api(here: Stage) -> Api:
    return here.start(
        RC_API_MAX_BODY_BYTES=str(MAX_BODY),
        RC_API_MAX_INPUT_BYTES=str(MAX_INPUT),
        RC_API_MAX_DOCUMENT_BYTES=str(MAX_BODY),
    )


@pytest.fixture(scope="module")
def client(api: Api) -> Iterator[httpx.Client]:
    with api.client() as opened:
        yield opened


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_refused_by_name(client: httpx.Client, name: str) -> None:
    """Protects: each is a 4xx problem that names the field and has a code for programs."""
    send, status, code, field = BAD[name]
    answer = send(client)
    body = answer.json()
    known = code if code in ("bad_json", "too_large", "not_found") else body["code"]
    problem(answer, status, known)
    named = [error["field"] for error in body["errors"]]
    assert (named[0] if named else None) == field or field in named, body
    if code != "x":
        assert code in (body["code"], *(error["code"] for error in body["errors"])), body


def test_nothing_of_a_refused_request_is_kept(client: httpx.Client, here: Stage) -> None:
    """Protects: never half a run: no row of any table is left by a refusal."""
    for send, *_ in BAD.values():
        try:
            assert send(client).status_code >= 400
        except httpx.RequestError:  # the generator of the chunked one is used up
            continue
    for table in (b"runs", b"sessions", b"messages", b"idempotency_keys", b"documents"):
        assert here.count(b"SELECT count(*) FROM " + table) == 0, table


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@effort(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    body=st.one_of(
        ANY_JSON,
        st.dictionaries(st.sampled_from(sorted(NEW_RUN.fields)), ANY_JSON, max_size=5),
        st.fixed_dictionaries(
            {"input": ANY_JSON, "metadata": st.dictionaries(st.text(), st.text())}
        ),
    ),
    path=st.sampled_from(["/v1/runs", "/v1/runs:batch", f"{SESSION}/runs", "/v1/documents"]),
)
def test_no_json_makes_it_fail(client: httpx.Client, body: Any, path: str) -> None:
    """Protects: whatever JSON is sent: taken, or a problem of 4xx; a taken one reads back."""
    answer = client.post(path, content=json.dumps(body).encode(), headers=JSON)
    assert answer.status_code < 500, answer.text
    if answer.status_code == 202 and "run_id" in answer.json():
        full = client.get(f"/v1/runs/{answer.json()['run_id']}").json()
        assert same(full["input"], body["input"])


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: Postgres writes 4e16 as a whole number, which is the same number."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, int | float) and not isinstance(one, bool):
        return float(one) == float(other)
    return bool(one == other)


KEYS = {
    "none": (None, "Bearer"),
    "of another scheme": ("Basic dXNlcjpwYXNz", "invalid_request"),
    "without rc_": ("Bearer secret", "invalid_request"),
    "cut": ("Bearer rc_short", "invalid_request"),
    "unknown": ("Bearer rc_" + "a" * 43, "invalid_token"),
    "not ASCII": ("Bearer rc_" + "é" * 43, "invalid_request"),
    "two": ("Bearer rc_" + "a" * 43 + ", Bearer rc_" + "a" * 43, "invalid_request"),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_wrong_key_is_a_401_that_says_how(api: Api, name: str) -> None:
    """Protects: nothing is read without a key, and WWW-Authenticate says what is wrong."""
    given, error = KEYS[name]
    headers = [(b"authorization", given.encode("latin-1"))] if given else []
    with api.client("") as client:
        for operation in OPERATIONS:
            path = operation.path.replace("{run_id}", UNKNOWN).replace("{session_id}", UNKNOWN)
            path = path.replace("{document_id}", UNKNOWN)
            answer = client.request(operation.method, path, headers=headers)
            if operation.key:
                problem(answer, 401, "unauthorized")
                assert error in answer.headers["www-authenticate"]
            else:
                assert answer.status_code == 200


def test_a_revoked_key_is_refused_in_a_new_process(here: Stage, api: Api) -> None:
    """Protects: revocation works: a process that does not remember the key refuses it at once."""
    key = here.new_key("default")

    async def revoke(db: Database) -> int:
        return len(await keys.revoke(db, key[:9]))

    assert here.run(revoke) == 1
    with api.client(key) as client:
        problem(client.get("/v1/runs"), 401, "unauthorized")


def test_another_workspace_sees_nothing(client: httpx.Client, here: Stage, api: Api) -> None:
    """Protects: on every route with an id, a foreign id is a 404 and lists do not show it."""
    session_id = str(uuid.uuid4())
    body = {"input": "secret", "session_id": session_id}
    run = client.post("/v1/runs", json=body).json()
    stored = client.post("/v1/documents", json={"name": "secret.md", "text": "# Secret"}).json()
    rule = {"name": "secret", "agent": "research", "input": "secret", "interval_s": 3600}
    write_reports(here, "default", 1)
    ids = {
        "run_id": run["run_id"],
        "session_id": session_id,
        "document_id": stored["document_id"],
        "schedule_id": client.post("/v1/schedules", json=rule).json()["schedule_id"],
        "report_id": client.get("/v1/reports").json()["data"][0]["report_id"],
        "memory_id": remember(here, "default", "secret")[0],
    }
    with api.client(here.new_key("another")) as foreign:
        for operation in OPERATIONS:
            if "{" not in operation.path:
                continue
            path = operation.path.format(**ids)
            has_input = operation.body is not None and "input" in operation.body.fields
            content = {"input": 1} if has_input else None
            answer = foreign.request(operation.method, path, json=content)
            problem(answer, 404, "not_found")
            own = client.request(operation.method, path, json=content)  # to whom it is no 404
            assert own.status_code not in (401, 404, 422), own.text
        lists = ("/v1/runs", "/v1/documents", "/v1/schedules", "/v1/reports", "/v1/memories")
        for path in (*lists, f"/v1/runs?session_id={session_id}"):
            assert foreign.get(path).json()["data"] == []
        problem(foreign.post("/v1/runs", json=body), 404, "not_found")
        # A cursor of one workspace shows another one only its own.
        cursor = client.get("/v1/runs?limit=1").json()["next_cursor"]
        assert foreign.get("/v1/runs", params={"cursor": cursor}).json()["data"] == []


def test_a_large_body_is_refused_before_it_is_sent(api: Api) -> None:
    """Protects: Content-Length alone is enough for a 413, and `Expect: 100-continue` is not
    answered with an invitation."""
    head = (
        f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.stage.key}\r\n"
        "Content-Type: application/json\r\nContent-Length: 99999999999\r\n"
        "Expect: 100-continue\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", api.part.ports["api"]), 10) as raw:
        raw.sendall(head.encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "line",
    [b"GET / HTTP/1.1\r\nHost x\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET \xff HTTP/1.1\r\n\r\n"],
)
def test_what_is_no_http_is_a_400(api: Api, line: bytes) -> None:
    """Protects: garbage on the port neither hangs nor breaks the process."""
    with socket.create_connection(("127.0.0.1", api.part.ports["api"]), 10) as raw:
        raw.sendall(line)
        assert raw.recv(100).startswith(b"HTTP/1.1 400 ")


def test_request_ids_of_callers_are_kept_if_they_are_sensible(client: httpx.Client) -> None:
    """Protects: one id through all logs; and nothing odd comes into them."""
    assert client.get("/", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    for odd in ("a b", "x" * 129, ""):
        assert client.get("/", headers={"X-Request-Id": odd}).headers["x-request-id"] != odd


def test_an_agent_is_unknown_until_a_worker_registers(servers: Servers) -> None:
    """Protects: the refusal says whether any worker is there, and a worker that has just come
    is found at once."""
    with stage(servers, registered=False) as empty, empty.start().client() as client:
        refusal = problem(client.post("/v1/runs", json={"input": 1}), 422, "unknown_agent")
        assert "no worker has registered yet" in refusal["errors"][0]["message"]
        empty.run(register)

        def told() -> bool:
            answer = client.post("/v1/runs", json={"input": 1, "agent": "nobody"})
            return "agents: echo, rebuild_index, research" in answer.json()["detail"]

        until(told, 1)
