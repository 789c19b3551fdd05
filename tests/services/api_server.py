"""An api process for tests: its own database with a worker registered, a key, and a client.

One is shared by the tests of a module: starting it costs more than most of them.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
from tests.conftest import Servers

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import AgentInfo, Outcome, WorkerInfo
from researchcopilot.core.settings import DatabaseSettings
from researchcopilot.dev import processes
from researchcopilot.dev.parts import Part
from researchcopilot.storage import keys, moves, workers
from researchcopilot.storage.db import Database

T = TypeVar("T")
WORKER_ID = new_id()
QUESTION = "对比 pgvector 与 Qdrant"
AGENTS = (
    AgentInfo("echo", "1", "runs", "says what it was asked"),
    AgentInfo("words", "1", "runs", "takes words and nothing else", {"type": "string"}),
    AgentInfo("research", "1", "runs", "answers from the corpus"),
    AgentInfo("rebuild_index", "1", "system", "makes the index anew"),
)
_numbers = itertools.count(1)


@dataclass
class Stage:
    """A database, and the api processes on it."""

    servers: Servers
    database_url: str
    key: str
    parts: list[Part] = field(default_factory=list)

    def start(self, **environ: str) -> "Api":
        """One more api process. `environ` adds to its settings."""
        part = Part(
            f"api {next(_numbers)}",
            ["api"],
            {
                "RC_DATABASE_URL": self.database_url,
                "RC_REDIS_URL": self.servers.valkey.url,
                "RC_API_PORT": "0",
                **environ,
            },
            folder=self.servers.folder,
            guard=self.servers.guard,
        )
        self.parts.append(part)
        part.start()
        return Api(part, self)

    def run(self, work: Callable[[Database], Awaitable[T]]) -> T:
        """Do something with the database."""
        return asyncio.run(_with_database(self.database_url, work))

    def new_key(self, workspace: str) -> str:
        async def create(db: Database) -> str:
            key, _ = await keys.create(db, workspace=workspace, name="test")
            return key

        return self.run(create)

    def finish(self, run_id: str, kind: str = "succeeded") -> None:
        """Claim a run and end it, as a worker does."""

        async def work(db: Database) -> None:
            [verdict] = await moves.claim(
                db, [run_id], worker_id=WORKER_ID, claim_id=new_id(), lease_s=60
            )
            assert verdict.claim is not None, verdict
            error = {"type": "Oops", "message": "it broke"} if kind == "failed" else None
            result = '{"answer": "42"}' if kind == "succeeded" else None
            outcome = Outcome(run_id, verdict.claim.claim_no, WORKER_ID, kind, result, error)
            await moves.finish(db, WORKER_ID, [outcome])

        self.run(work)

    def connections(self) -> int:
        """Connections to this database, seen from outside."""
        row = self.servers.admin.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = %s",
            [self.database_url.rpartition("/")[2]],
        ).fetchone()
        assert row is not None
        return int(str(row[0]))

    def count(self, query: bytes) -> int:
        async def work(db: Database) -> int:
            [(number,)] = await db.rows(query)
            return int(number)

        return self.run(work)


@dataclass(frozen=True)
class Api:
    """One api process."""

    part: Part
    stage: Stage

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.part.ports['api']}"

    def client(self, key: str | None = None, **more: Any) -> httpx.Client:
        """A client with the stage's key, another one, or ("") none."""
        key = self.stage.key if key is None else key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, **more)


async def _with_database(url: str, work: Callable[[Database], Awaitable[T]]) -> T:
    db = Database(DatabaseSettings(url=url))
    await db.open()
    try:
        return await work(db)
    finally:
        await db.close()


async def register(db: Database, agents: tuple[AgentInfo, ...] = AGENTS) -> None:
    worker = WorkerInfo(WORKER_ID, {"runs": 8, "system": 2}, agents, "test", 1, "0")
    await workers.register(db, worker)


@contextmanager
def stage(servers: Servers, *, registered: bool = True) -> Iterator[Stage]:
    """A stage without processes; those that are started on it are stopped at the end."""
    with servers.database(f"api_{next(_numbers)}") as url:
        made = Stage(servers, url, "")
        try:
            made.key = made.new_key("default")
            if registered:
                made.run(register)
            yield made
        finally:
            for part in made.parts:
                part.stop()


def submit(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    """A run that was accepted."""
    answer = client.post("/v1/runs", json={"input": QUESTION, **fields})
    assert answer.status_code == 202, answer.text
    body: dict[str, Any] = answer.json()
    return body


def problem(answer: httpx.Response, status: int, code: str) -> Mapping[str, Any]:
    """The problem document of a refusal; fails if it is not exactly this one."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert (body["status"], body["code"]) == (status, code), body
    assert body["request_id"] == answer.headers["x-request-id"]
    assert body["type"] == f"urn:researchcopilot:problem:{code}"
    return body


def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait for something that another process does; fails when it takes too long."""
    assert processes.until(lambda: bool(condition()), seconds), "it did not come true in time"


def metric(api: Api, name: str) -> float:
    """The metric of this name (and labels), as /metrics says it now; 0 if it is not there yet."""
    text = httpx.get(f"http://127.0.0.1:{api.part.ports['health']}/metrics").text
    lines = [line for line in text.splitlines() if line.startswith(name + " ")]
    return float(lines[0].split()[-1]) if lines else 0.0
