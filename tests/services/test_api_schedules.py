"""Schedules over HTTP: made once, read, changed, paused, fired by hand, looked ahead at."""

import asyncio
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from tests.conftest import Servers
from tests.services.api_server import Api, Stage, problem
from tests.services.schedules_api import body, make, path, scheduling_stage
from tests.services.test_api_openapi import check
from tests.support import eventually, waits_in

from researchcopilot.core.schedules import SystemSchedule, plan
from researchcopilot.storage import schedules
from researchcopilot.storage.db import Database

UNKNOWN = str(uuid.UUID(int=7))


@pytest.fixture(scope="module")
def here(servers: Servers) -> Iterator[Stage]:
    with scheduling_stage(servers) as made:
        yield made


@pytest.fixture(scope="module")
def api(here: Stage) -> Api:
    return here.start(RC_API_MAX_INPUT_BYTES="5000")


@pytest.fixture(scope="module")
def client(api: Api) -> Iterator[httpx.Client]:
    with api.client() as opened:
        yield opened


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/openapi.json").json()
    return found


def test_a_schedule_is_made_and_read(client: httpx.Client, document: dict[str, Any]) -> None:
    """Protects: what is made is what was said, with defaults, and what a GET says."""
    said = body(
        name="早报", cron="30 8 * * MON-FRI", timezone="Asia/Shanghai", input="今天有什么新文档?",
        metadata={"team": "搜索"}, jitter_s=60, max_attempts=5, timeout_s=12.5, deadline_s=3600,
    )  # fmt: skip
    answer = client.post("/v1/schedules", json=said)
    check(document, "/v1/schedules", answer)
    made = answer.json()
    assert answer.headers["location"] == path(made)
    assert {name: made[name] for name in said} == said
    assert (made["misfire"], made["overlap"], made["system"]) == ("latest", "skip", False)
    assert (made["queue"], made["paused_at"], made["last_tick"]) == (None, None, None)
    next_tick = datetime.fromisoformat(made["next_tick"])
    assert (next_tick.hour, next_tick.minute) == (0, 30)
    assert datetime.now(UTC) < next_tick < datetime.now(UTC) + timedelta(days=4)
    assert str(uuid.UUID(made["session_id"])) == made["session_id"]
    got = client.get(path(made))
    check(document, "/v1/schedules/{schedule_id}", got)
    assert got.json() == made


def test_an_interval_counts_from_its_start(client: httpx.Client) -> None:
    start = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=3)
    made = make(client, interval_s=90, starts_at=start.isoformat())
    assert datetime.fromisoformat(made["next_tick"]) == start
    ticks = client.get(path(made, ":preview?count=3")).json()["data"]
    assert [datetime.fromisoformat(tick["tick"]) - start for tick in ticks] == [
        timedelta(seconds=90 * n) for n in range(3)
    ]


def test_misfire_all_overlaps_by_itself(client: httpx.Client) -> None:
    """Protects: with the default overlap the ticks of a catch-up would skip each other."""
    assert make(client, misfire="all")["overlap"] == "allow"


def test_lists_go_by_name_and_page(here: Stage, api: Api, document: dict[str, Any]) -> None:
    with api.client(here.new_key("lists")) as other:
        names = sorted(f"s{n:02}" for n in range(7))
        for name in names:
            make(other, name=name)
        found: list[str] = []
        url = "/v1/schedules?limit=3"
        while url:
            answer = other.get(url)
            check(document, "/v1/schedules", answer)
            found += [one["name"] for one in answer.json()["data"]]
            assert all("input" not in one for one in answer.json()["data"])
            cursor = answer.json()["next_cursor"]
            url = f"/v1/schedules?limit=3&cursor={cursor}" if cursor else ""
        assert found == names
        problem(other.get("/v1/schedules?cursor=x"), 422, "bad_cursor")


def test_another_workspace_sees_none_of_it(here: Stage, api: Api, client: httpx.Client) -> None:
    made = make(client)
    with api.client(here.new_key("others")) as other:
        assert other.get("/v1/schedules").json()["data"] == []
        for send in (
            other.get(path(made)), other.patch(path(made), json={"name": "mine"}),
            other.delete(path(made)), other.post(path(made, ":pause")),
            other.post(path(made, ":resume")), other.post(path(made, ":trigger")),
            other.get(path(made, ":preview")), other.get(path(made, "/ticks")),
        ):  # fmt: skip
            problem(send, 404, "not_found")
    assert client.get(path(made)).json() == made


# Changing


def test_a_change_of_times_counts_from_now(client: httpx.Client, document: dict[str, Any]) -> None:
    made = make(client, cron="0 8 * * *")
    answer = client.patch(path(made), json={"interval_s": 7200})
    check(document, "/v1/schedules/{schedule_id}", answer)
    changed = answer.json()
    assert (changed["cron"], changed["interval_s"]) == (None, 7200)
    ahead = datetime.fromisoformat(changed["next_tick"]) - datetime.now(UTC)
    assert timedelta(seconds=7190) < ahead <= timedelta(seconds=7200)
    back = client.patch(path(made), json={"cron": "0 8 * * *", "timezone": "Europe/Berlin"}).json()
    assert (back["cron"], back["interval_s"], back["timezone"]) == (
        "0 8 * * *", None, "Europe/Berlin",
    )  # fmt: skip


def test_other_changes_leave_the_next_tick(client: httpx.Client) -> None:
    made = make(client, interval_s=3600, metadata={"a": "b"}, queue="system", jitter_s=5)
    said = {"name": str(uuid.uuid4()), "input": "other", "metadata": None, "queue": None,
            "jitter_s": None, "misfire": "all"}  # fmt: skip
    changed = client.patch(path(made), json=said).json()
    assert changed["next_tick"] == made["next_tick"]
    assert (changed["name"], changed["input"]) == (said["name"], "other")
    assert (changed["metadata"], changed["queue"], changed["jitter_s"]) == ({}, None, 0.0)
    assert (changed["misfire"], changed["overlap"]) == ("all", "allow")
    assert changed["updated_at"] > made["updated_at"]
    assert client.patch(path(made), json={}).json() == changed


@pytest.mark.parametrize(
    ("said", "field", "words"),
    [
        ({"name": None}, "$.name", "must not be null"),
        ({"input": None}, "$.input", "must not be null"),
        ({"cron": None}, "$.cron", "one of them is needed"),
        ({"cron": "0 8 * * *", "interval_s": 60}, "$.cron", "exclude each other"),
        ({"timezone": "Europe/Belin"}, "$.timezone", "Europe/Berlin"),
        ({"agent": "nobody"}, "$.agent", "no worker has registered"),
        ({"agent": "words", "input": {"no": "string"}}, "$.input", "refused by the schema"),
        ({"ends_at": "2020-01-01T00:00:00Z"}, "$.ends_at", "is past"),
        ({"misfire": "all", "overlap": "skip"}, "$.overlap", "must be allow"),
        ({"schedule_id": UNKNOWN}, "$.schedule_id", "not a field"),
    ],
)
def test_a_change_that_is_wrong_changes_nothing(
    client: httpx.Client, said: dict[str, Any], field: str, words: str
) -> None:
    made = make(client)
    found = client.patch(path(made), json=said)
    assert found.status_code == 422, found.text
    [fault] = found.json()["errors"]
    assert fault["field"] == field
    assert words in fault["message"]
    assert client.get(path(made)).json() == made


def test_pause_and_resume(client: httpx.Client, document: dict[str, Any]) -> None:
    """Protects: both may be sent twice; a paused one that is changed stays paused."""
    made = make(client, interval_s=3600)
    for _ in range(2):
        answer = client.post(path(made, ":pause"))
        check(document, "/v1/schedules/{schedule_id}:pause", answer)
        assert answer.json()["paused_at"] is not None
        assert answer.json()["next_tick"] is None
    changed = client.patch(path(made), json={"interval_s": 7200}).json()
    assert (changed["interval_s"], changed["next_tick"]) == (7200, None)
    for _ in range(2):
        answer = client.post(path(made, ":resume"))
        check(document, "/v1/schedules/{schedule_id}:resume", answer)
        assert answer.json()["paused_at"] is None
        assert answer.json()["next_tick"] is not None


def test_deleting(client: httpx.Client, document: dict[str, Any]) -> None:
    made = make(client)
    run = client.post(path(made, ":trigger")).json()
    answer = client.delete(path(made))
    check(document, "/v1/schedules/{schedule_id}", answer)
    problem(client.get(path(made)), 404, "not_found")
    problem(client.delete(path(made)), 404, "not_found")
    assert client.get(f"/v1/runs/{run['run_id']}").status_code == 200


def test_the_products_own_are_paused_and_not_deleted(here: Stage, client: httpx.Client) -> None:
    """Protects: they are seen, paused, and fire at other times; what they do is not changed."""
    wanted = SystemSchedule("daily_report", "echo", cron="0 8 * * *", unique_key="report")
    here.run(lambda db: schedules.ensure_system(db, [wanted]))
    listed = client.get("/v1/schedules?limit=200").json()["data"]
    [made] = [one for one in listed if one["system"] and one["name"] == "daily_report"]
    assert made["session_id"] is None
    problem(client.delete(path(made)), 409, "conflict")
    problem(client.patch(path(made), json={"agent": "research"}), 409, "conflict")
    moved = client.patch(path(made), json={"timezone": "Asia/Shanghai"})
    assert moved.json()["next_tick"] != made["next_tick"]
    assert client.post(path(made, ":pause")).json()["paused_at"] is not None
    problem(client.post("/v1/schedules", json=body(name="daily_report")), 422, "invalid")
    every = problem(client.patch(path(made), json={"misfire": "all"}), 422, "invalid")
    assert [fault["field"] for fault in every["errors"]] == ["$.overlap"]


def test_nobody_takes_a_name_of_the_product(client: httpx.Client) -> None:
    """Protects: a workspace that is a moment old, whose own schedules are not made yet: also by
    changing a name, or they never would be."""
    made = make(client)
    found = problem(client.patch(path(made), json={"name": "rebuild_index"}), 422, "invalid")
    assert [fault["field"] for fault in found["errors"]] == ["$.name"]


def test_two_changes_at_once_are_checked_together(api: Api, here: Stage) -> None:
    """Protects: each of the two is right for the schedule that it was read for, and not for the one
    that the other has made of it: 422 for the slower, never 500."""
    with api.client() as client:
        pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({"misfire": "all"}, {"overlap": "skip"}),
            ({"jitter_s": 3000}, {"interval_s": 60}),
            ({"starts_at": "2027-06-01T00:00:00Z"}, {"ends_at": "2027-01-01T00:00:00Z"}),
        ]
        for one, other in pairs:
            made = make(client, interval_s=3600)
            codes = sorted(answer.status_code for answer in at_once(api, here, made, one, other))
            # `all` that comes second takes `allow` with it, and both are right.
            assert codes in ([200, 422], [200, 200] if "misfire" in one else [200, 422])
            left = client.get(path(made)).json()
            assert (left["misfire"], left["overlap"]) != ("all", "skip")
            assert left["jitter_s"] <= left["interval_s"]


def at_once(api: Api, here: Stage, made: dict[str, Any], *said: dict[str, Any]) -> list[Any]:
    """PATCHes that have all read the schedule before one of them changes it."""

    async def work(db: Database) -> list[httpx.Response]:
        headers = {"Authorization": f"Bearer {api.stage.key}"}
        async with httpx.AsyncClient(base_url=api.url, headers=headers, timeout=30) as many:
            async with db.transaction() as holding:
                await holding.execute(
                    b"SELECT 1 FROM schedules WHERE schedule_id = %(id)s FOR UPDATE",
                    {"id": made["schedule_id"]},
                )
                patches = [
                    asyncio.create_task(many.patch(path(made), json=fields)) for fields in said
                ]
                await eventually(lambda: all_wait(db, len(said)))
            return await asyncio.gather(*patches)

    return here.run(work)


async def all_wait(db: Database, number: int) -> bool:
    return await waits_in(db, "schedules") == number


# Ticks


def test_a_trigger_is_a_run_now(
    here: Stage, client: httpx.Client, document: dict[str, Any]
) -> None:
    """Protects: 202 with the run; sent twice with one key once; 409 while it has not ended."""
    made = make(client)
    key = {"Idempotency-Key": str(uuid.uuid4())}
    answer = client.post(path(made, ":trigger"), headers=key)
    check(document, "/v1/schedules/{schedule_id}:trigger", answer)
    run = answer.json()
    assert answer.headers["location"] == f"/v1/runs/{run['run_id']}"
    assert (run["session_id"], run["status"]) == (made["session_id"], "queued")
    assert run["metadata"]["schedule"] == made["name"]
    assert run["schedule_id"] == made["schedule_id"]
    again = client.post(path(made, ":trigger"), headers=key)
    assert (again.status_code, again.json()["run_id"]) == (202, run["run_id"])
    assert again.headers["idempotent-replayed"] == "true"
    other = make(client)
    problem(client.post(path(other, ":trigger"), headers=key), 422, "idempotency_mismatch")
    busy = problem(client.post(path(made, ":trigger")), 409, "conflict")
    assert run["run_id"] in busy["detail"]
    here.finish(run["run_id"])
    seen = client.get(path(made)).json()
    check(document, "/v1/schedules/{schedule_id}", client.get(path(made)))
    last = seen["last_tick"]
    assert (last["run_id"], last["cause"], last["status"]) == (
        run["run_id"],
        "trigger",
        "succeeded",
    )
    assert last["duration_s"] > 0
    assert seen["next_tick"] == made["next_tick"]


def test_a_tick_says_why_its_run_failed(here: Stage, client: httpx.Client) -> None:
    """Protects: whoever looks at a schedule sees what is wrong without asking for its run."""
    made = make(client)
    run = client.post(path(made, ":trigger")).json()
    here.finish(run["run_id"], "failed")
    last = client.get(path(made)).json()["last_tick"]
    error = client.get(f"/v1/runs/{run['run_id']}").json()["error"]
    assert (last["status"], last["error"]) == ("failed", error["message"])
    assert last["error"]
    assert client.get(path(made, "/ticks")).json()["data"] == [last]


def test_history_tells_of_every_tick(
    here: Stage, client: httpx.Client, document: dict[str, Any]
) -> None:
    """Protects: fired, skipped and missed ones, with runs and outcomes, newest first, in pages."""
    made = make(client, interval_s=60)

    async def four_ticks(db: Database) -> None:
        for _ in range(2):
            await db.execute(b"UPDATE ticks SET tick = tick - interval '1 hour'")
            await db.execute(
                b"UPDATE schedules SET next_tick = next_tick - interval '2 minutes 1 second',"
                b" anchor = anchor - interval '2 minutes 1 second' WHERE schedule_id = %(i)s",
                {"i": made["schedule_id"]},
            )
            now, due = await schedules.due(db, 10)
            assert now is not None
            await schedules.fire(db, [plan(one, now) for one in due])

    here.run(four_ticks)
    answer = client.get(path(made, "/ticks"))
    check(document, "/v1/schedules/{schedule_id}/ticks", answer)
    found = answer.json()["data"]
    assert [tick["outcome"] for tick in found] == ["overlap", "missed", "fired", "missed"]
    assert [tick["run_id"] is not None for tick in found] == [False, False, True, False]
    assert found[2]["status"] == "queued"
    pages = client.get(path(made, "/ticks?limit=3")).json()
    rest = client.get(path(made, f"/ticks?limit=3&cursor={pages['next_cursor']}")).json()
    assert pages["data"] + rest["data"] == found
    problem(client.get(path(made, "/ticks?cursor=x")), 422, "bad_cursor")


def test_previews(client: httpx.Client, document: dict[str, Any]) -> None:
    """Protects: of a schedule, paused or not, and of a rule that nobody has made yet; local time
    tells of the change."""
    made = make(client, cron="30 2 * * *", timezone="Europe/Berlin",
                starts_at="2027-03-27T00:00:00Z", ends_at="2027-03-30T00:00:00Z")  # fmt: skip
    client.post(path(made, ":pause"))
    answer = client.get(path(made, ":preview?count=10"))
    check(document, "/v1/schedules/{schedule_id}:preview", answer)
    expected = [
        {"tick": "2027-03-27T01:30:00Z", "local": "2027-03-27T02:30:00+01:00"},
        {"tick": "2027-03-28T01:00:00Z", "local": "2027-03-28T03:00:00+02:00"},
        {"tick": "2027-03-29T00:30:00Z", "local": "2027-03-29T02:30:00+02:00"},
    ]
    assert answer.json()["data"] == expected
    said = {name: made[name] for name in ("cron", "timezone", "starts_at", "ends_at")}
    answer = client.post("/v1/schedules:preview", json={**said, "count": 2})
    check(document, "/v1/schedules:preview", answer)
    assert answer.json()["data"] == expected[:2]
    found = problem(client.post("/v1/schedules:preview", json={"cron": "x"}), 422, "invalid")
    assert found["errors"][0]["field"] == "$.cron"
