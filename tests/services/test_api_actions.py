"""Cancel, replay, discard, dead letters, ledger and on_conflict over HTTP: a real process."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.conftest import Servers
from tests.services.api_server import WORKER_ID, Stage, problem, stage, submit

from researchcopilot.core.ids import new_id
from researchcopilot.storage import moves
from researchcopilot.storage.db import Database


@pytest.fixture(scope="module")
def here(servers: Servers) -> Iterator[Stage]:
    with stage(servers) as made:
        made.start()
        yield made


@pytest.fixture
def client(here: Stage) -> Iterator[httpx.Client]:
    with _client(here, here.new_key(f"w-{new_id()[:18]}")) as opened:
        yield opened


def _client(here: Stage, key: str | None = None) -> httpx.Client:
    port = here.parts[0].ports["api"]
    headers = {"Authorization": f"Bearer {key or here.key}"}
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30)


def claim(here: Stage, run_id: str) -> None:
    async def work(db: Database) -> None:
        await moves.claim(db, [run_id], worker_id=WORKER_ID, claim_id=new_id(), lease_s=60)

    here.run(work)


def failed(client: httpx.Client, here: Stage, **fields: Any) -> str:
    """A dead letter."""
    run_id: str = submit(client, **fields)["run_id"]
    here.finish(run_id, "failed")
    return run_id


def test_a_queued_run_is_cancelled_at_once_and_twice_alike(client: httpx.Client) -> None:
    run_id = submit(client)["run_id"]
    first = client.post(f"/v1/runs/{run_id}:cancel")
    assert (first.status_code, first.json()["status"]) == (200, "cancelled")
    again = client.post(f"/v1/runs/{run_id}:cancel")
    assert (again.status_code, again.json()) == (200, first.json())


def test_a_running_run_is_asked(client: httpx.Client, here: Stage) -> None:
    run_id = submit(client)["run_id"]
    claim(here, run_id)
    answer = client.post(f"/v1/runs/{run_id}:cancel")
    assert (answer.status_code, answer.json()["status"]) == (202, "running")
    asked = answer.json()["cancel_requested_at"]
    assert asked is not None
    assert client.post(f"/v1/runs/{run_id}:cancel").json()["cancel_requested_at"] == asked


def test_a_run_that_has_ended_is_returned_as_it_is(client: httpx.Client, here: Stage) -> None:
    run_id = submit(client)["run_id"]
    here.finish(run_id)
    answer = client.post(f"/v1/runs/{run_id}:cancel")
    assert (answer.status_code, answer.json()["status"]) == (200, "succeeded")
    assert answer.json()["cancel_requested_at"] is None


@pytest.mark.parametrize("verb", [":cancel", ":replay", ":discard"])
def test_what_is_not_there_or_foreign_is_not_found(
    client: httpx.Client, here: Stage, verb: str
) -> None:
    with _client(here) as other:
        foreign = failed(other, here)
        for run_id in (new_id(), foreign):
            problem(client.post(f"/v1/runs/{run_id}{verb}"), 404, "not_found")
        assert other.get(f"/v1/runs/{foreign}").json()["status"] == "failed"
    problem(client.get(f"/v1/runs/{foreign}/claims"), 404, "not_found")
    problem(client.post(f"/v1/runs/nonsense{verb}"), 422, "invalid")


def test_replay_makes_one_new_run(client: httpx.Client, here: Stage) -> None:
    dead = failed(client, here, metadata={"a": "b"})
    first = client.post(f"/v1/runs/{dead}:replay")
    assert first.status_code == 202
    new = first.json()
    assert new["run_id"] != dead
    assert (new["status"], new["metadata"]) == ("queued", {"a": "b"})
    assert (new["replay_of"], new["resolved_by"]) == (dead, None)
    assert client.get(f"/v1/runs/{dead}").json()["resolved_by"] == new["run_id"]
    assert first.headers["location"] == f"/v1/runs/{new['run_id']}"
    again = client.post(f"/v1/runs/{dead}:replay", json={"fresh": True})
    assert again.json()["run_id"] == new["run_id"]
    assert again.headers["idempotent-replayed"] == "true"
    assert client.get("/v1/dead-letters").json() == {"data": [], "total": 0}


def test_only_a_failed_run_is_replayed_or_discarded(client: httpx.Client) -> None:
    run_id = submit(client)["run_id"]
    for verb in ("replay", "discard"):
        body = problem(client.post(f"/v1/runs/{run_id}:{verb}"), 409, "conflict")
        assert "queued" in body["detail"]


def test_replay_keeps_finished_steps_unless_fresh(client: httpx.Client, here: Stage) -> None:
    dead, other = failed(client, here), failed(client, here)

    async def keep(db: Database) -> None:
        await db.execute(
            b"INSERT INTO steps (run_id, name, claim_no, workspace_id, value)"
            b" SELECT run_id, 'search', 1, workspace_id, '1' FROM runs"
            b" WHERE run_id = ANY (%(ids)s::uuid[])",
            {"ids": [dead, other]},
        )

    here.run(keep)
    kept = client.post(f"/v1/runs/{dead}:replay").json()["run_id"]
    fresh = client.post(f"/v1/runs/{other}:replay", json={"fresh": True}).json()["run_id"]
    for run_id, steps in ((kept, 1), (fresh, 0)):
        query = f"SELECT count(*) FROM steps WHERE run_id = '{run_id}'"  # noqa: S608
        assert here.count(query.encode()) == steps


def test_dead_letters_are_grouped_by_what_went_wrong(client: httpx.Client, here: Stage) -> None:
    ids = [failed(client, here, agent="echo") for _ in range(3)] + [failed(client, here)]
    listed = client.get("/v1/dead-letters").json()
    assert listed["total"] == 4
    assert [(g["agent"], g["count"]) for g in listed["data"]] == [("echo", 3), ("research", 1)]
    assert listed["data"][0]["run_ids"] == ids[2::-1]
    assert listed["data"][0]["error_type"] == "Oops"
    filtered = client.get("/v1/dead-letters", params={"agent": "research"}).json()
    assert [group["run_ids"] for group in filtered["data"]] == [[ids[3]]]
    problem(client.get("/v1/dead-letters?failed_after=yesterday"), 422, "invalid")


def test_dealing_with_many_by_filter(client: httpx.Client, here: Stage) -> None:
    for _ in range(3):
        failed(client, here, agent="echo")
    failed(client, here)
    [echo, research] = client.get("/v1/dead-letters").json()["data"]
    answer = client.post(
        "/v1/dead-letters:replay", json={"fingerprint": echo["fingerprint"], "limit": 2}
    ).json()
    assert (answer["matched"], answer["done"], len(answer["run_ids"])) == (2, 2, 2)
    gone = client.post(
        "/v1/dead-letters:discard", json={"fingerprint": research["fingerprint"]}
    ).json()
    assert gone["detail"] == "1 of 1 dead letters were discarded."
    assert client.get("/v1/dead-letters").json()["total"] == 1
    assert client.post("/v1/dead-letters:discard", json={"all": True}).json()["done"] == 1
    empty = client.post("/v1/dead-letters:replay", json={"all": True}).json()
    assert empty["done"] == 0
    assert "names no dead letter" in empty["detail"]


def test_no_filter_is_no_filter_by_accident(client: httpx.Client, here: Stage) -> None:
    failed(client, here)
    for verb in ("replay", "discard"):
        body = problem(client.post(f"/v1/dead-letters:{verb}", json={}), 422, "invalid")
        assert "all: true" in body["detail"]
        problem(client.post(f"/v1/dead-letters:{verb}", json={"agnet": "x"}), 422, "invalid")
    assert client.get("/v1/dead-letters").json()["total"] == 1


def test_a_dead_letter_can_be_discarded_twice(client: httpx.Client, here: Stage) -> None:
    dead = failed(client, here)
    assert client.post(f"/v1/runs/{dead}:discard").status_code == 200
    assert client.post(f"/v1/runs/{dead}:discard").status_code == 200
    assert client.get("/v1/dead-letters").json()["total"] == 0
    assert client.post(f"/v1/runs/{dead}:replay").status_code == 202


def test_the_ledger_tells_each_claim(client: httpx.Client, here: Stage) -> None:
    dead = failed(client, here)
    [line] = client.get(f"/v1/runs/{dead}/claims").json()["data"]
    assert (line["claim_no"], line["outcome"], line["by_worker"]) == (1, "failed", True)
    assert line["worker_id"] == WORKER_ID
    assert line["error"] == {"type": "Oops", "message": "it broke"}


def test_reject_refuses_a_busy_session_and_names_the_run(client: httpx.Client) -> None:
    session = new_id()
    first = submit(client, session_id=session)
    body = {"input": "x", "session_id": session, "on_conflict": "reject"}
    key = {"Idempotency-Key": "again"}
    refused = problem(client.post("/v1/runs", json=body, headers=key), 409, "session_busy")
    assert first["run_id"] in refused["detail"]
    client.post(f"/v1/runs/{first['run_id']}:cancel")
    assert client.post("/v1/runs", json=body, headers=key).status_code == 202


def test_cancel_previous_ends_what_has_not_ended(client: httpx.Client, here: Stage) -> None:
    session = new_id()
    running, waiting = (submit(client, session_id=session) for _ in range(2))
    claim(here, running["run_id"])
    submit(client, session_id=session, on_conflict="cancel_previous")
    found = [client.get(f"/v1/runs/{run['run_id']}").json() for run in (running, waiting)]
    assert [run["status"] for run in found] == ["running", "cancelled"]
    assert found[0]["cancel_requested_at"] is not None
