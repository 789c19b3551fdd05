"""A loaded stack tells the truth: every gauge that any part exposes is compared with Postgres,
Redis, the kernel, or what was done here; and every counter that the tables vouch for, with them.

Protects: dashboards, alerts and autoscaling, which believe these numbers.
"""

import http.client
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
import redis
from tests.conftest import Parts
from tests.services import truths
from tests.services.scraping import P, differs, samples, scrape, wrong_gauges
from tests.services.truths import COUNTERS, World, exact, name_of

from researchcopilot.dev.client import Client
from researchcopilot.dev.processes import until

LIMIT_S = 45.0
SETTINGS = {
    "RC_WORKER_QUEUES": ",".join(f"{queue}={n}" for queue, n in truths.SLOTS.items()),
    "RC_DATABASE_POOL": str(truths.CONNECTIONS),
    "RC_STATS_SECONDS": "1",
    "RC_RETRY_BASE_SECONDS": "0.01",
}


# The load


class Scene:
    """Submits what is wanted and waits until it stands as it is meant to."""

    def __init__(self, world: World, client: Client) -> None:
        self.world = world
        self.client = client
        self.accepted = 0

    def submit(self, agent: str, given: object, **more: object) -> str:
        self.accepted += 1
        made = self.client.post("/v1/runs", {"agent": agent, "input": given, **more})
        return str(made["run_id"])

    def wait(self, query: str, number: int) -> None:
        seen = -1

        def there() -> bool:
            nonlocal seen
            seen = self.world.rows.execute(f"SELECT count(*) {query}".encode()).fetchall()[0][0]
            return bool(seen == number)

        assert until(there, LIMIT_S, 0.05), f"{seen} and not {number}: {query}"

    def ends(self) -> None:
        """Every way in which a claim can end, and all of them counted somewhere."""
        for number in range(5):
            self.submit("echo", number)
        self.submit("echo", {"sleep": "on purpose"})
        self.submit("exit_async", 3, max_attempts=3)
        self.submit("sleep", 60, timeout_s=0.2, max_attempts=2)
        self.submit("sleep_in_thread", 300, timeout_s=0.2, max_attempts=1)
        self.wait("FROM runs WHERE status IN ('succeeded', 'failed') AND queue = 'runs'", 9)

    def later(self) -> None:
        """Delayed, retrying, and without an agent that any worker has."""
        for _ in range(3):
            self.submit("echo", "later", delay_s=600)
        for _ in range(2):
            self.submit("come_back", 500)
        self.submit("elsewhere", "?")
        self.wait("FROM runs WHERE status = 'queued' AND run_at > clock_timestamp()", 6)

    def busy(self) -> None:
        """All slots are taken, two runs are parked behind their session, five wait."""
        session = {"session_id": "11111111-1111-4111-8111-111111111111"}
        self.submit("sleep", 600, **session)
        self.wait("FROM runs WHERE status = 'running'", 2)
        for _ in range(2):
            self.submit("echo", "parked", **session)
        self.wait("FROM runs WHERE parked", 2)
        for _ in range(2):
            self.submit("sleep", 600)
        self.wait("FROM runs WHERE status = 'running'", 4)
        for _ in range(5):
            self.submit("echo", "waits")


def prepare(world: World) -> None:
    """An agent that is known and that nobody has; an index with two versions; a limit for Redis."""
    world.rows.execute(
        "INSERT INTO agents (name, version, queue) VALUES ('elsewhere', '1', 'runs')"
    )
    world.rows.execute(
        "INSERT INTO index_versions (workspace_id, version, format, document_ids, chunks)"
        " VALUES (1, 7, 1, '{}', 0), (1, 8, 1, '{}', 0)"
    )
    world.redis.config_set("maxmemory", "1gb")


@pytest.fixture
def scene(workers: Parts) -> Iterator[Scene]:
    parts = workers
    parts.environment.update(SETTINGS)
    with (
        psycopg.connect(parts.environment["RC_DATABASE_URL"], autocommit=True) as rows,
        redis.Redis.from_url(parts.environment["RC_REDIS_URL"], decode_responses=True) as client,
    ):
        world = World(rows, client)
        try:
            prepare(world)
            yield from started(world, parts)
        finally:
            client.config_set("maxmemory", "0")


def started(world: World, parts: Parts) -> Iterator[Scene]:
    doomed = parts("worker")
    world.parts += [parts("api"), parts("scheduler"), parts("janitor")]
    key = parts.new_key()
    with Client(f"http://127.0.0.1:{world.parts[0].ports['api']}", key) as client:
        scene = Scene(world, client)
        for _ in range(2):
            scene.submit("sleep", 600)
        scene.wait("FROM runs WHERE status = 'running'", 2)
        doomed.kill()
        scene.wait("FROM claims WHERE outcome = 'lost'", 2)
        world.parts += [parts("worker"), parts("worker")]
        scene.wait("FROM runs WHERE status = 'running' AND claim_no = 2", 2)
        # One of them is cancelled, so that the rest has room.
        [[run_id]] = world.rows.execute("SELECT run_id::text FROM runs LIMIT 1").fetchall()
        client.post(f"/v1/runs/{run_id}:cancel", {})
        scene.ends()
        scene.later()
        scene.busy()
        with readers(scene, key):
            yield scene


@contextmanager
def readers(scene: Scene, key: str) -> Iterator[None]:
    """Three requests wait for the ends of two runs."""
    found = scene.world.rows.execute("SELECT run_id::text FROM runs WHERE status = 'running'")
    run_ids = [row[0] for row in found.fetchall()][:2]
    api = scene.world.parts[0]
    connections = []
    for run_id in (*run_ids, run_ids[0]):
        connection = http.client.HTTPConnection("127.0.0.1", api.ports["api"], timeout=90)
        connection.request(
            "GET", f"/v1/runs/{run_id}?wait=60", headers={"Authorization": f"Bearer {key}"}
        )
        connections.append(connection)
    scene.world.watching = (3, 2)
    try:
        yield
    finally:
        for connection in connections:
            connection.close()


# Counters


def wrong_counters(world: World) -> list[str]:
    wrong = []
    for part in world.parts:
        scraped = scrape(part)
        for where, name, suffix, labels, query in COUNTERS:
            if where == name_of(part):
                rows = world.by(query, *labels.split(), part=part)
                values = {k: v for k, v in samples(scraped, P + name, suffix).items() if v}
                if differs(values, exact(rows)):
                    wrong.append(f"{part.name}: {name}{suffix} says {values}; it is {rows}")
    return wrong


def test_every_gauge_and_every_counter_is_the_truth(scene: Scene) -> None:
    found: list[str] = []

    def all_true() -> bool:
        found[:] = [*wrong_gauges(scene.world), *wrong_counters(scene.world)]
        return not found

    assert until(all_true, LIMIT_S, 0.2), "\n".join(found)
    [janitor] = [scrape(part) for part in scene.world.parts if name_of(part) == "janitor"]
    assert samples(janitor, P + "queue_waiting")[truths.series(queue="runs")] >= 5
    assert samples(janitor, P + "dead_letters")[frozenset()] == 4
    seconds = samples(janitor, P + "recovery_seconds", "_sum")[truths.series(reason="silent")]
    assert 2 * 0.6 < seconds < 2 * 10, "a lease of a second, two runs, from the last sign of life"
    requests = samples(scrape(scene.world.parts[0]), P + "api_requests", "_total")
    assert requests[truths.series(method="POST", route="/v1/runs", status="202")] == scene.accepted
