"""Real servers for every test that wants them: one Postgres, one Valkey, for the whole session.

`database_url` is a fresh database for each test, cloned from a template that is migrated once;
`redis_url` is a Valkey that was flushed before the test. `environment` holds both as RC_
variables with small leases, `settings` is what the parts read from it; `db` and `queue` are open.
`parts` starts parts of ours as processes. A failure that has to do with a server shows its log.
"""

import asyncio
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis
import psycopg
import pytest
import redis
from psycopg import sql

from researchcopilot.core import settings as core_settings
from researchcopilot.core.errors import Unavailable
from researchcopilot.core.settings import DatabaseSettings, Settings
from researchcopilot.dev.parts import Part, child_environment
from researchcopilot.dev.postgres import Postgres
from researchcopilot.dev.processes import Guard
from researchcopilot.dev.valkey import Valkey
from researchcopilot.storage.db import Database
from researchcopilot.storage.migrate import migrate
from researchcopilot.storage.queue import Queue

# `--hypothesis-profile=long`: for the tests that can use a longer look.
hypothesis.settings.register_profile("long", max_examples=120, deadline=None, database=None)

TEMPLATE = "template_researchcopilot"
SHARED_MEMORY = Path("/dev/shm")
ROOM = 1 << 30
_servers: list["Servers"] = []
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of this session and what conftest needs to prepare them for a test."""

    postgres: Postgres
    valkey: Valkey
    guard: Guard
    folder: Path
    admin: psycopg.Connection[tuple[object, ...]]
    flusher: redis.Redis

    @property
    def trouble(self) -> bool:
        return not (self.postgres.alive and self.valkey.alive)

    @contextmanager
    def database(self, name: str) -> Iterator[str]:
        """A database with the schema and nothing else, until the end of the block; its URL."""
        made, template = sql.Identifier(name), sql.Identifier(TEMPLATE)
        self.admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(made, template))
        try:
            yield self.postgres.url(name)
        finally:
            self.admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(made))


def server_folder() -> Path:
    """In memory where there is room: tests of what a disk keeps make a folder of their own."""
    roomy = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > ROOM
    folder = Path(tempfile.mkdtemp(prefix="rc-tests-", dir=SHARED_MEMORY if roomy else None))
    folder.chmod(0o711)
    return folder


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    folder = server_folder()
    guard = Guard(folder)
    # Without fsync, only here: no test of these servers pulls the plug of the machine.
    careless = {"fsync": "off", "full_page_writes": "off", "max_connections": "300"}
    postgres = Postgres(folder, guard, options=careless)
    valkey = Valkey(folder, guard, appendonly=False)
    try:
        postgres.start()
        valkey.start()
        with (
            psycopg.connect(postgres.url("postgres"), autocommit=True) as admin,
            redis.Redis(port=valkey.port) as flusher,
        ):
            make_template(postgres, admin)
            _servers.append(Servers(postgres, valkey, guard, folder, admin, flusher))
            yield _servers[-1]
    finally:
        _servers.clear()
        valkey.stop()
        postgres.stop()
        guard.close()


def make_template(postgres: Postgres, admin: psycopg.Connection[tuple[object, ...]]) -> None:
    admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(TEMPLATE)))

    async def bring_up_to_date() -> None:
        db = Database(DatabaseSettings(url=postgres.url(TEMPLATE)))
        await db.open()
        try:
            await migrate(db)
        finally:
            await db.close()

    asyncio.run(bring_up_to_date())


@pytest.fixture
def database_url(servers: Servers) -> Iterator[str]:
    """A database of this test's own."""
    with servers.database(f"test_{next(_numbers)}") as url:
        yield url


@pytest.fixture
def redis_url(servers: Servers) -> str:
    """An empty Valkey. Do not restart it in a test: make one of your own (`dev.valkey`)."""
    servers.flusher.flushall()
    return servers.valkey.url


@pytest.fixture
def environment(database_url: str, redis_url: str) -> dict[str, str]:
    """RC_ variables for the parts: this test's servers, small leases, quick beats."""
    return {
        "RC_DATABASE_URL": database_url,
        "RC_REDIS_URL": redis_url,
        "RC_LEASE_SECONDS": "1",
        "RC_SWEEP_SECONDS": "0.1",
        "RC_PROBE_SECONDS": "0.2",
        "RC_PROBE_SLACK_SECONDS": "0.1",
        "RC_RETRY_BASE_SECONDS": "0.05",
        "RC_DRAIN_SECONDS": "2",
        "RC_API_PORT": "0",
        "RC_HEALTH_PORT": "0",
    }


@dataclass(frozen=True, slots=True)
class Parts:
    """Starts parts of ours as processes over this test's servers; they end with the test."""

    environment: dict[str, str]
    folder: Path
    guard: Guard
    started: list[Part] = field(default_factory=list)

    def __call__(self, name: str, *arguments: str, **environment: str) -> Part:
        """`parts("worker", RC_LEASE_SECONDS="5")` is ready when this returns."""
        part = self.launch(name, *arguments, **environment)
        part.wait_ready()
        return part

    def launch(self, name: str, *arguments: str, **environment: str) -> Part:
        """The same, and not waited for."""
        part = Part(
            f"{name} {len(self.started) + 1}",
            [name, *arguments],
            # What a part that is killed leaves in its temporary folder is the test's to remove.
            {**os.environ, "TMPDIR": str(self.folder), **self.environment, **environment},
            folder=self.folder,
            guard=self.guard,
        )
        self.started.append(part)
        part.launch()
        return part

    def command(self, *arguments: str) -> str:
        """Run `python -m researchcopilot …` to its end; what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "researchcopilot", *arguments],
            env=child_environment({"PATH": "/usr/bin:/bin", **self.environment}),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def new_key(self) -> str:
        return self.command("keys", "create", "--quiet").strip()


@pytest.fixture
def parts(environment: dict[str, str], servers: Servers, tmp_path: Path) -> Iterator[Parts]:
    started = Parts(environment, tmp_path, servers.guard)
    try:
        yield started
    finally:
        for part in started.started:
            part.kill()


@pytest.fixture
def settings(environment: dict[str, str]) -> Settings:
    return core_settings.load(environment)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def db(settings: Settings, anyio_backend: str) -> AsyncIterator[Database]:
    database = Database(settings.database)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


@pytest.fixture
async def queue(settings: Settings, anyio_backend: str) -> AsyncIterator[Queue]:
    opened = Queue(settings.redis)
    await opened.open()
    try:
        yield opened
    finally:
        await opened.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the servers' last words to a failure that they may have caused."""
    report = yield
    for servers in _servers:
        if report.failed and (servers.trouble or is_about_servers(call.excinfo)):
            report.sections.append(("Postgres log", servers.postgres.child.tail()))
            report.sections.append(("Valkey log", servers.valkey.child.tail()))
    return report


def is_about_servers(found: pytest.ExceptionInfo[BaseException] | None) -> bool:
    kinds = (Unavailable, psycopg.Error, redis.RedisError, OSError)
    error = found.value if found is not None else None
    while error is not None:
        if isinstance(error, kinds):
            return True
        error = error.__cause__ or error.__context__
    return False


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With NO_SKIPS=1 (CI) a test that was skipped is a failure: what CI should run, it runs."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not os.environ.get("NO_SKIPS"):
        return
    if skipped := len(reporter.stats.get("skipped", [])):
        reporter.write_line(f"\n{skipped} skipped: with NO_SKIPS=1 that is a failure", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
