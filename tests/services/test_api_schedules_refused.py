"""What is refused when a schedule is made: 422 with the field and the reason, and no row."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conftest import Servers
from tests.services.api_server import Api, Stage, problem, register, until
from tests.services.schedules_api import body, make, path, scheduling_stage

from researchcopilot.core.models import AgentInfo


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


YESTERDAY = (datetime.now(UTC) - timedelta(days=1)).isoformat()
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "never fires": ({"cron": "0 0 30 2 *"}, "$.cron", "never fires"),
    "never fires, though it can be read": ({"cron": "0 0 */20 * 1L"}, "$.cron", "never fires"),
    "no cron line": ({"cron": "every day"}, "$.cron", "five fields"),
    "six fields": ({"cron": "* * * * * *"}, "$.cron", "interval_s"),
    "unknown zone": ({"timezone": "Asia/Shanghi"}, "$.timezone", "did you mean Asia/Shanghai?"),
    "unknown zone of an interval": (
        {"interval_s": 60, "timezone": "Mars/Olympus"}, "$.timezone", "not an IANA time zone",
    ),
    "a zone that is another on each machine": (
        {"timezone": "localtime"}, "$.timezone", "not an IANA time zone",
    ),
    "a step that cron cannot tell": ({"cron": "*/90 * * * *"}, "$.cron", "every 90 minutes"),
    "a path as zone": ({"timezone": "../../etc/passwd"}, "$.timezone", "not an IANA time zone"),
    "interval zero": ({"interval_s": 0}, "$.interval_s", "must be from 1"),
    "interval below zero": ({"interval_s": -5}, "$.interval_s", "must be from 1"),
    "both rules": ({"cron": "0 8 * * *", "interval_s": 60}, "$.cron", "exclude each other"),
    "no rule": ({"cron": None}, "$.cron", "one of them is needed"),
    "end before start": (
        {"starts_at": "2027-02-01T00:00:00Z", "ends_at": "2027-01-01T00:00:00Z"},
        "$.ends_at", "later than starts_at",
    ),
    "end is past": ({"ends_at": YESTERDAY}, "$.ends_at", "is past"),
    "no tick between start and end": (
        {"starts_at": "2027-02-01T09:00:00Z", "ends_at": "2027-02-01T10:00:00Z"},
        "$.ends_at", "before the first tick",
    ),
    "starts in 3027": ({"starts_at": "3027-01-01T00:00:00Z"}, "$.starts_at", "ten years"),
    "start without a zone": ({"starts_at": "2027-01-01T00:00:00"}, "$.starts_at", "its zone"),
    "unknown agent": ({"agent": "nobody"}, "$.agent", "agents: broken, echo"),
    "unknown queue": ({"queue": "nowhere"}, "$.queue", "no worker serves"),
    "refused by the agent's schema": (
        {"agent": "words", "input": {"a": 1}}, "$.input", "refused by the schema",
    ),
    "of a property": (
        {"agent": "strict", "input": {"question": "?"}}, "$.input.question", "too short",
    ),
    "by a keyword of the newest draft": (
        {"agent": "strict", "input": {"question": "why?", "x": 1}}, "$.input", "Unevaluated",
    ),
    "input too large": ({"input": "x" * 6000}, "$.input", "at most 5000 bytes"),
    "blank input": ({"input": " "}, "$.input", "must not be empty"),
    "no name": ({"name": ""}, "$.name", "1 to 200"),
    "NUL in the name": ({"name": "a\0"}, "$.name", "NUL"),
    "jitter longer than the interval": ({"interval_s": 60, "jitter_s": 61}, "$.jitter_s", "longer"),
    "misfire": ({"misfire": "sometimes"}, "$.misfire", "one of skip, latest, all"),
    "overlap": ({"overlap": "queue"}, "$.overlap", "one of skip, allow"),
    "all must overlap": ({"misfire": "all", "overlap": "skip"}, "$.overlap", "must be allow"),
    "unknown field": ({"chron": "* * * * *"}, "$.chron", "did you mean cron?"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused_at_creation(here: Stage, client: httpx.Client, name: str) -> None:
    """Protects: 422 with the field and the reason, and no row."""
    fields, field, words = BAD[name]
    said = body(**fields)
    answer = client.post("/v1/schedules", json=said)
    assert answer.status_code in (413, 422), answer.text
    assert answer.json()["code"] in ("invalid", "unknown_agent", "unknown_queue", "too_large")
    faults = {fault["field"]: fault["message"] for fault in answer.json()["errors"]}
    assert words in faults[field], faults
    named = client.get("/v1/schedules?limit=200").json()["data"]
    assert said["name"] not in {one["name"] for one in named}


def test_a_name_is_taken_once(client: httpx.Client) -> None:
    made = make(client)
    found = problem(client.post("/v1/schedules", json=body(name=made["name"])), 422, "invalid")
    [fault] = found["errors"]
    assert (fault["field"], fault["code"]) == ("$.name", "duplicate")
    other = make(client)
    answer = client.patch(path(other), json={"name": made["name"]})
    assert problem(answer, 422, "invalid")["errors"][0]["field"] == "$.name"


def test_a_name_is_taken_once_also_at_once(api: Api) -> None:
    """Protects: two requests in one moment: one 201, one 422, one row."""

    async def both() -> list[int]:
        said = body()
        headers = {"Authorization": f"Bearer {api.stage.key}"}
        async with httpx.AsyncClient(base_url=api.url, headers=headers, timeout=30) as many:
            answers = await asyncio.gather(
                *(many.post("/v1/schedules", json=said) for _ in range(8))
            )
        return sorted(answer.status_code for answer in answers)

    assert asyncio.run(both()) == [201] + [422] * 7


def test_every_fault_is_named_at_once(client: httpx.Client) -> None:
    said = body(agent="nobody", cron="x", starts_at="2027-02-01T00:00:00Z",
                ends_at="2027-01-01T00:00:00Z")  # fmt: skip
    found = client.post("/v1/schedules", json=said).json()["errors"]
    assert {fault["field"] for fault in found} == {"$.agent", "$.cron", "$.ends_at"}


def test_a_schema_that_cannot_be_used_refuses_nothing(client: httpx.Client) -> None:
    """Protects: an agent's own mistake is no 500."""
    assert make(client, agent="broken")["agent"] == "broken"


def test_nothing_is_fetched_for_a_schema(here: Stage, client: httpx.Client) -> None:
    """Protects: a worker that announces `$ref: http://…` makes the api ask nobody."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        schema = {"$ref": f"http://127.0.0.1:{server.server_port}/schema.json"}
        far = AgentInfo("far", "1", "runs", "", schema)
        here.run(lambda db: register(db, (far,)))
        # An agent that is new shows within two seconds.
        until(lambda: client.post("/v1/schedules", json=body(agent="far")).status_code == 201)
        server.shutdown()
    assert asked == []


# Schemas whose check would take longer than anybody lives, each with a legal input that does it.
_LOOP = {"type": "array", "anyOf": [{"items": {"$ref": "#/$defs/n"}}] * 2}
TRAPS: dict[str, tuple[dict[str, Any], Any]] = {
    "a pattern": ({"pattern": "^(a+)+$"}, "a" * 60 + "!"),
    "names of properties": ({"patternProperties": {"^(a+)+$": {}}}, {"a" * 60 + "!": 1}),
    "references": ({"$defs": {"n": _LOOP}, "$ref": "#/$defs/n"}, json.loads("[" * 28 + "]" * 28)),
}
TRAPS["references"][1][0] = json.loads("[" * 26 + "1" + "]" * 26)


@pytest.mark.parametrize("name", TRAPS)
def test_a_schema_that_takes_for_ever_keeps_nobody_waiting(
    here: Stage, api: Api, client: httpx.Client, name: str
) -> None:
    """Protects: the api answers meanwhile, also who has sent it; a batch of them costs no more than
    one, the log says what to do, and other schemas go on refusing."""
    schema, trap = TRAPS[name]
    agent = f"slow with {name}"
    here.run(lambda db: register(db, (AgentInfo(agent, "1", "runs", "", schema),)))
    until(lambda: agent in client.get("/v1/agents").text)
    runs = {"runs": [{"agent": agent, "input": trap}] * 50}
    with api.client() as other, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(other.post, "/v1/runs:batch", json=runs)
        asked = 0
        while not sent.done():
            assert client.get("/v1/agents", timeout=10).status_code == 200
            asked += 1
        assert sent.result().status_code == 202, sent.result().text
    assert asked > 10
    said = api.part.last_words(5)
    assert agent in said and "Make its patterns, references and uniqueItems simpler" in said
    strict = {"agent": "strict", "input": {"question": "?"}}
    assert "too short" in client.post("/v1/runs", json=strict).text


def test_the_process_that_checks_inputs_is_started_anew(here: Stage) -> None:
    """Protects: somebody kills it (a node without memory): the next input is checked all the same;
    and it ends with the api."""

    api = here.start()

    def checkers() -> list[int]:
        tasks = Path(f"/proc/{api.part.pid}/task").glob("*/children")
        return [int(pid) for children in tasks for pid in children.read_text().split()]

    bad = {"agent": "strict", "input": {"question": "?"}}
    with api.client() as client:
        assert "too short" in client.post("/v1/runs", json=bad).text
        [first] = checkers()
        os.kill(first, signal.SIGKILL)
        until(lambda: Path(f"/proc/{first}/stat").read_text().split()[2] == "Z")
        assert "too short" in client.post("/v1/runs", json=bad).text
        [second] = checkers()
    api.part.kill()
    until(lambda: not Path(f"/proc/{second}").exists())
    assert first != second
