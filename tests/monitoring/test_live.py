"""A real Prometheus scrapes a running stack under load: every panel of the dashboard has data, and
what the gauges say is what Postgres and Redis hold.
"""

import json
import os
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.chart.engine import CHART
from tests.monitoring.kubernetes import Kubernetes, kubernetes

from researchcopilot.dev import ports
from researchcopilot.dev.client import Client
from researchcopilot.dev.keys import api_key
from researchcopilot.dev.processes import until
from researchcopilot.dev.stack import Plan, Stack

LIMIT = 120.0
INTERVAL_S = 2
SETTINGS = {
    "RC_LEASE_SECONDS": "2",
    "RC_SWEEP_SECONDS": "0.5",
    "RC_WORKER_QUEUES": "runs=2,system=1",
}
VARIABLES = {"namespace": ".*", "release": ".*", "queue": ".*", "__rate_interval": "30s"}
# Of kube-state-metrics: only on a cluster. And what stays empty where all is well.
ELSEWHERE = ("kube_", 'outcome="stale"')


@dataclass(frozen=True, slots=True)
class Prometheus:
    port: int

    def get(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def series(self, query: str) -> list[Any]:
        for name, value in VARIABLES.items():
            query = query.replace(f"${name}", value)
        found: list[Any] = self.get("/api/v1/query", query=query)["result"]
        return [one for one in found if one["value"][1] != "NaN"]

    def up(self) -> int:
        try:
            return len([one for one in self.series("up") if one["value"][1] == "1"])
        except OSError:
            return 0


@contextmanager
def prometheus(stack: Stack, folder: Path) -> Iterator[Prometheus]:
    jobs = [
        {
            "targets": [f"127.0.0.1:{part.ports['health']}"],
            "labels": {"part": name.split()[0], "release": "dev", "namespace": "dev", "pod": name},
        }
        for name, part in stack.parts.items()
    ]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(CHART / "files/rules.yaml")],
        "scrape_configs": [{"job_name": "researchcopilot", "static_configs": jobs}],
    }
    (folder / "prometheus.json").write_text(json.dumps(config))
    port = ports.free_port()
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.json'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    try:
        yield Prometheus(port)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


@dataclass(frozen=True, slots=True)
class Watched:
    stack: Stack
    prometheus: Prometheus
    client: Client
    kubernetes: Kubernetes

    def load(self) -> None:
        """Good runs, more than there are slots; one that fails, one for soon, one for later."""
        self.ends()
        for number in range(12):
            self.submit({"say": str(number), "sleep": 0.2})
        self.submit({"sleep": "on purpose"}, max_attempts=1)
        self.submit({"sleep": 30}, timeout_s=0.2, max_attempts=2)
        self.submit("later", delay_s=1)
        self.submit("much later", delay_s=3600)

    def ends(self) -> None:
        """A run that is cancelled in the middle, and one that its deadline finds behind it."""
        long = self.submit({"sleep": 30})
        soon = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
        self.submit("too late", session_id=long["session_id"], deadline=soon)
        until(lambda: self.client.get(f"/v1/runs/{long['run_id']}")["status"] == "running", 20, 0.1)
        until(lambda: datetime.now(UTC).isoformat() > soon, 2, 0.1)
        self.client.post(f"/v1/runs/{long['run_id']}:cancel", {})

    def mischief(self) -> None:
        """A worker dies, entries stand twice, one is lost: work for guards and janitor."""
        self.stack.parts["worker 1"].kill()
        with redis.Redis.from_url(self.stack.valkey.url) as client:
            entries = client.lrange("queue:runs", 0, -1)
            assert isinstance(entries, list)
            if entries:
                client.rpush("queue:runs", *entries[:3])
                client.lrem("queue:runs", 1, entries[-1])
        self.stack.parts["worker 1"].start()
        for _ in range(6):  # so that each worker has one in its hands
            self.submit({"sleep": 2})
        until(self._all_work, 10, 0.1)
        self.kubernetes.death()
        self.kubernetes.ask()

    def _all_work(self) -> bool:
        busy = self.prometheus.series('sum(researchcopilot_queue_running{queue="runs"})')
        return bool(busy) and int(busy[0]["value"][1]) >= 6

    def submit(self, given: Any, **more: Any) -> Any:
        return self.client.post("/v1/runs", {"agent": "echo", "input": given, **more})


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("prometheus")
    with Stack(Plan(environ={**os.environ, **SETTINGS})) as stack, kubernetes(stack) as cluster:
        stack.start()
        cluster.operator(folder)
        with prometheus(stack, folder) as server, Client(stack.api_url, api_key(stack)) as client:
            until(lambda: server.up() == len(stack.parts), 30, 0.2)
            assert server.up() == len(stack.parts), (folder / "prometheus.log").read_text()
            cluster.worker()
            yield Watched(stack, server, client, cluster)


def panels() -> dict[str, str]:
    board = json.loads((CHART / "files/dashboard.json").read_text())
    return {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in board["panels"]
        for target in panel.get("targets", [])
    }


def test_every_panel_has_data(watched: Watched) -> None:
    wanted = {
        name: query
        for name, query in panels().items()
        if not any(word in query for word in ELSEWHERE)
    }
    assert len(wanted) > 35
    with as_file(files("researchcopilot.agents.research") / "sample") as folder:
        watched.stack.command("corpus", "add", str(folder))
    often = {"name": "often", "agent": "echo", "input": "tick", "interval_s": INTERVAL_S}
    schedule = watched.client.post("/v1/schedules", often)["schedule_id"]
    empty = dict(wanted)

    def all_seen() -> bool:
        """Each has had data once; not all of them keep it."""
        for name, query in list(empty.items()):
            if watched.prometheus.series(query):
                del empty[name]
        return not empty

    end = time.monotonic() + LIMIT
    while empty and time.monotonic() < end:
        watched.load()
        watched.mischief()
        until(all_seen, 5, 0.5)
    watched.client.post(f"/v1/schedules/{schedule}:pause", {})
    assert empty == {}


def test_every_other_panel_is_at_least_a_query(watched: Watched) -> None:
    for query in panels().values():
        watched.prometheus.series(query)


def test_depths_are_those_of_postgres(watched: Watched) -> None:
    """Once all is at rest, one run is delayed for an hour, one has failed, none waits or runs."""

    def at_rest() -> bool:
        told = {
            name: watched.prometheus.series(f'max(researchcopilot_{name}{{queue="runs"}})')
            for name in ("queue_waiting", "queue_running", "queue_processing")
        }
        return all(found and found[0]["value"][1] == "0" for found in told.values())

    until(at_rest, 60, 0.5)
    assert at_rest()
    delayed = 'max(researchcopilot_queue_delayed{queue="runs"})'
    # A retry may be under way: it is delayed for a moment, and then it is none of these.
    assert until_equal(watched, delayed, lambda: counts(watched)["queued"])
    assert until_equal(
        watched, "max(researchcopilot_dead_letters)", lambda: counts(watched)["failed"]
    )


def counts(watched: Watched) -> dict[str, int]:
    found = {"queued": 0, "failed": 0}
    for status in found:
        cursor = ""
        while True:
            page = watched.client.get(f"/v1/runs?status={status}&limit=100{cursor}")
            found[status] += len(page["data"])
            if not page.get("next_cursor"):
                break
            cursor = f"&cursor={page['next_cursor']}"
    return found


def until_equal(watched: Watched, query: str, value: Callable[[], int]) -> bool:
    def look() -> bool:
        found = watched.prometheus.series(query)
        return bool(found) and int(found[0]["value"][1]) == value()

    until(look, 30, 0.5)
    return look()


def test_keda_s_page_tells_how_many_workers_are_wanted(watched: Watched) -> None:
    port = watched.stack.parts["janitor"].ports["health"]

    def wanted(query: str) -> dict[str, int]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics/queue/{query}") as answer:
            found: dict[str, int] = json.load(answer)
            return found

    for _ in range(10):
        watched.submit({"sleep": 30})
    assert until(lambda: wanted("x?queues=runs%3D2")["desired_workers"] == 5, 20, 0.1)
    assert wanted("x?queues=runs%3D100,system%3D1")["desired_workers"] == 1
