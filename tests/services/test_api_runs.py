"""Runs over HTTP: each accepted once, whatever happens. Real processes, real servers."""

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from tests.conftest import Servers
from tests.services.api_server import (
    QUESTION,
    Api,
    Stage,
    problem,
    stage,
    submit,
    until,
)

from researchcopilot.storage.db import Database

# Clients have these names in their code: none of them may go.
RELIED_ON = (
    *("run_id", "session_id", "workspace_id", "agent", "queue", "status", "parked", "attempts"),
    *("max_attempts", "metadata", "error", "created_at", "run_at", "deadline", "started_at"),
    *("finished_at", "cancel_requested_at", "links"),
)


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


def test_an_accepted_run_is_the_row(client: httpx.Client) -> None:
    """Protects: the 202 says exactly what the database will say, without having read it."""
    answer = client.post(
        "/v1/runs",
        json={
            "input": {"question": QUESTION},
            "agent": "echo",
            "metadata": {"team": "搜索"},
            "on_conflict": "parallel",
            "max_attempts": 5,
            "timeout_s": 12.5,
            "delay_s": 3600,
        },
    )
    run = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == run["links"]["self"] == f"/v1/runs/{run['run_id']}"
    assert answer.headers["retry-after"] == "60"
    full = client.get(run["links"]["self"]).json()
    assert {name: full[name] for name in run} == run
    assert (full["input"], full["result"]) == ({"question": QUESTION}, None)
    assert (run["status"], run["attempts"], run["max_attempts"]) == ("queued", 0, 5)
    assert (run["queue"], run["timeout_s"], run["metadata"]) == ("runs", 12.5, {"team": "搜索"})
    assert set(RELIED_ON) <= run.keys()
    due = datetime.fromisoformat(run["run_at"]) - datetime.fromisoformat(run["created_at"])
    assert due == timedelta(hours=1)


def test_defaults_are_those_of_the_agent(client: httpx.Client) -> None:
    """Protects: without an agent it is research, and an agent's runs go to its own queue."""
    run = submit(client)
    assert (run["agent"], run["queue"], run["max_attempts"]) == ("research", "runs", 3)
    assert run["run_at"] == run["created_at"]
    assert submit(client, agent="rebuild_index", input={})["queue"] == "system"
    assert submit(client, agent="echo", queue="system")["queue"] == "system"


def test_the_seeds_paths_are_the_same_routes(client: httpx.Client) -> None:
    """Protects: POST /runs, POST /sessions/{id}/runs and GET /runs/{id} work as in the book."""
    session_id = str(uuid.uuid4())
    first = client.post("/runs", json={"input": "a", "session_id": session_id})
    second = client.post(f"/sessions/{session_id}/runs", json={"input": "b"})
    assert (first.status_code, second.status_code) == (202, 202)
    for run in (first.json(), second.json()):
        assert run["session_id"] == session_id
        assert client.get(f"/runs/{run['run_id']}").json()["run_id"] == run["run_id"]
    listed = client.get("/runs", params={"session_id": session_id}).json()["data"]
    assert [run["run_id"] for run in listed] == [second.json()["run_id"], first.json()["run_id"]]


def test_times_are_taken_with_their_zone(client: httpx.Client, here: Stage) -> None:
    """Protects: run_at and deadline in any zone mean one moment, and come back in UTC."""
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=2)
    run = submit(
        client,
        run_at=at.astimezone().isoformat(),
        deadline=(at + timedelta(hours=1)).isoformat().replace("+00:00", "Z"),
    )
    assert datetime.fromisoformat(run["run_at"]) == at
    assert datetime.fromisoformat(run["deadline"]) == at + timedelta(hours=1)
    assert run["run_at"].endswith("Z")


def test_a_time_that_is_past_means_now(client: httpx.Client) -> None:
    """Protects: a client whose clock is behind is served, and its run has a whole day."""
    run = submit(client, run_at="2001-01-01T00:00:00Z")
    lasts = datetime.fromisoformat(run["deadline"]) - datetime.fromisoformat(run["created_at"])
    assert lasts == timedelta(days=1)


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/sessions/{session}/runs", "/v1/runs:batch"])
def test_one_key_makes_its_runs_once(client: httpx.Client, here: Stage, path: str) -> None:
    """Protects: the same key and body is the same run as it is now; another body is a 422."""
    path = path.format(session=uuid.uuid4())
    one: dict[str, Any] = {"input": QUESTION, "agent": "echo"}
    body = {"runs": [one, one]} if "batch" in path else one
    headers = {"Idempotency-Key": f'"{uuid.uuid4()}"'}
    first = client.post(path, json=body, headers=headers)
    assert first.status_code == 202
    assert "idempotent-replayed" not in first.headers
    runs = first.json().get("data", [first.json()])
    here.finish(runs[0]["run_id"])
    # The bare form of the key, and the body written otherwise: still the same request.
    bare = {"Idempotency-Key": headers["Idempotency-Key"].strip('"')}
    second = client.post(path, json=dict(reversed(body.items())), headers=bare)
    assert (second.status_code, second.headers["idempotent-replayed"]) == (202, "true")
    again = second.json().get("data", [second.json()])
    assert [run["run_id"] for run in again] == [run["run_id"] for run in runs]
    assert (again[0]["status"], again[-1]["status"]) == ("succeeded", again[-1]["status"])
    other = {**body, "runs": [one]} if "batch" in path else {**one, "input": "other"}
    refusal = problem(client.post(path, json=other, headers=bare), 422, "idempotency_mismatch")
    assert refusal["errors"][0]["field"] == "Idempotency-Key"


def test_a_repetition_is_served_although_its_deadline_is_past(
    client: httpx.Client, here: Stage
) -> None:
    """Protects: what was told 202 once is told 202 again, also when the clock or the registry
    would refuse it now."""
    soon = (datetime.now(UTC) + timedelta(milliseconds=300)).isoformat()
    body = {"input": "x", "deadline": soon}
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    first = client.post("/v1/runs", json=body, headers=headers)
    assert first.status_code == 202, first.text
    until(lambda: datetime.now(UTC) > datetime.fromisoformat(soon))
    again = client.post("/v1/runs", json=body, headers=headers)
    assert again.json()["run_id"] == first.json()["run_id"]
    assert again.headers["idempotent-replayed"] == "true"
    problem(client.post("/v1/runs", json=body), 422, "invalid")


def test_keys_are_of_one_workspace_and_one_route(client: httpx.Client, api: Api) -> None:
    """Protects: no workspace meets another one's keys, routes do not share theirs, and the session
    in the path is part of the request."""
    headers = {"Idempotency-Key": "k-shared"}
    first = client.post("/v1/runs", json={"input": 1}, headers=headers).json()
    with api.client(api.stage.new_key("another")) as foreign:
        answer = foreign.post("/v1/runs", json={"input": 2}, headers=headers)
        assert answer.status_code == 202, answer.text
        assert answer.json()["run_id"] != first["run_id"]
    one, two = (f"/v1/sessions/{uuid.uuid4()}/runs" for _ in range(2))
    assert client.post(one, json={"input": 1}, headers=headers).status_code == 202
    elsewhere = client.post(two, json={"input": 1}, headers=headers)
    problem(elsewhere, 422, "idempotency_mismatch")
    alias = client.post("/runs", json={"input": 1}, headers=headers).json()
    assert alias["run_id"] == first["run_id"]


def test_two_processes_at_once_make_one_run(here: Stage, api: Api) -> None:
    """Protects: the same request at two replicas in the same moment is one run (a unique key in
    Postgres decides, not a process)."""
    other = here.start()
    with api.client() as one, other.client() as two, ThreadPoolExecutor(16) as pool:
        for number in range(10):
            together = threading.Barrier(16)

            def post(
                client: httpx.Client, number: int = number, barrier: threading.Barrier = together
            ) -> httpx.Response:
                barrier.wait(10)
                headers = {"Idempotency-Key": f"at-once-{number}"}
                return client.post("/v1/runs", json={"input": number}, headers=headers)

            answers = list(pool.map(post, [one, two] * 8))
            assert {answer.status_code for answer in answers} == {202}
            assert len({answer.json()["run_id"] for answer in answers}) == 1
            fresh = [a for a in answers if "idempotent-replayed" not in a.headers]
            assert len(fresh) == 1
    made = here.count(b"SELECT count(*) FROM runs WHERE run_id = ANY (SELECT unnest(run_ids) FROM "
                      b"idempotency_keys WHERE key LIKE 'at-once-%')")  # fmt: skip
    assert made == 10


def test_a_batch_is_all_or_nothing(client: httpx.Client, here: Stage) -> None:
    """Protects: a thousand runs come in order in one answer; one bad one leaves no trace."""
    before = here.count(b"SELECT count(*) FROM runs")
    good = [{"input": number, "agent": "echo"} for number in range(1000)]
    bad = [
        *good[:-1],
        {"input": 1, "agent": "nobody"},
    ]
    refusal = problem(client.post("/v1/runs:batch", json={"runs": bad}), 422, "unknown_agent")
    assert [error["field"] for error in refusal["errors"]] == ["$.runs[999].agent"]
    foreign = session_of_another_workspace(here)
    last = {"input": 1, "session_id": foreign}
    answer = client.post("/v1/runs:batch", json={"runs": [*good[:-1], last]})
    problem(answer, 404, "not_found")
    assert here.count(b"SELECT count(*) FROM runs") == before + 1  # that of the other workspace
    answer = client.post("/v1/runs:batch", json={"runs": good})
    runs = answer.json()["data"]
    assert answer.status_code == 202
    assert client.get(runs[7]["links"]["self"]).json()["input"] == 7
    assert len({run["run_id"] for run in runs}) == 1000


def session_of_another_workspace(here: Stage) -> str:
    session_id = str(uuid.uuid4())
    with Api(here.parts[0], here).client(here.new_key("another")) as foreign:
        answer = foreign.post("/v1/runs", json={"input": 1, "session_id": session_id})
        assert answer.status_code == 202
    return session_id


def test_the_hint_reaches_redis(client: httpx.Client, here: Stage) -> None:
    """Protects: after the commit its id stands in its queue, and nothing but ids."""
    run = submit(client)
    entry = f"{run['workspace_id']}.{run['run_id']}".encode()
    until(lambda: entry in here.servers.flusher.lrange("queue:runs", 0, -1))


def test_the_session_of_a_parallel_run_is_no_queue(client: httpx.Client, here: Stage) -> None:
    """Protects: on_conflict reaches the row: parallel runs do not take turns."""
    session_id = str(uuid.uuid4())
    for conflict in ("parallel", "queue"):
        submit(client, session_id=session_id, on_conflict=conflict)

    async def serial(db: Database) -> list[bool]:
        rows = await db.rows(
            b"SELECT serial FROM runs WHERE session_id = %(s)s::uuid ORDER BY seq",
            {"s": session_id},
        )
        return [row[0] for row in rows]

    assert here.run(serial) == [False, True]
