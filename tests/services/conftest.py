"""Servers that a test may stop, and workers that know the agents of `tests/agents_for_tests.py`.

`fragile` is a Postgres and a Valkey of their own, shared by the tests that restart them; each test
gets a fresh database, an empty Redis, and both servers up.
"""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import redis
from psycopg import sql
from tests import agents_for_tests
from tests.agents_in_processes import ALL
from tests.conftest import Parts, Servers
from tests.services import claimed

from researchcopilot.core import settings as core_settings
from researchcopilot.core.settings import DatabaseSettings, Settings
from researchcopilot.dev.postgres import Postgres
from researchcopilot.dev.valkey import Valkey
from researchcopilot.storage.db import Database
from researchcopilot.storage.migrate import migrate
from researchcopilot.storage.queue import Queue

ROOT = Path(__file__).parents[2]
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Fragile:
    """Two servers to be stopped and started, and what our parts are told of them."""

    postgres: Postgres
    valkey: Valkey
    environment: dict[str, str]

    def start(self) -> None:
        for server in (self.postgres, self.valkey):
            if not server.alive:
                server.start()

    @property
    def settings(self) -> Settings:
        return core_settings.load(self.environment)


@pytest.fixture(scope="session")
def own_servers(servers: Servers) -> Iterator[tuple[Postgres, Valkey]]:
    folder = servers.folder / "fragile"
    folder.mkdir(mode=0o711)
    # A stop must not take long: there is nothing to keep.
    options = {"fsync": "off", "full_page_writes": "off"}
    postgres = Postgres(folder, servers.guard, options=options)
    valkey = Valkey(folder, servers.guard, appendonly=True)
    try:
        postgres.start()
        valkey.start()
        yield postgres, valkey
    finally:
        valkey.kill()
        postgres.kill()


@pytest.fixture
def fragile(own_servers: tuple[Postgres, Valkey], environment: dict[str, str]) -> Fragile:
    """Both up, both empty. The `environment` of this test is for the other, shared pair."""
    postgres, valkey = own_servers
    Fragile(postgres, valkey, {}).start()
    flush(valkey)
    name = f"fragile_{next(_numbers)}"
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    url = postgres.url(name)
    asyncio.run(bring_up_to_date(url))
    ours = {"RC_DATABASE_URL": url, "RC_REDIS_URL": valkey.url}
    return Fragile(postgres, valkey, {**environment, **ours})


def flush(valkey: Valkey) -> None:
    with redis.Redis(port=valkey.port) as client:
        client.flushall()


async def bring_up_to_date(url: str) -> None:
    db = Database(DatabaseSettings(url=url))
    await db.open()
    try:
        await migrate(db)
    finally:
        await db.close()


@pytest.fixture
async def queue(queue: Queue) -> AsyncIterator[Queue]:
    """The queue, and at the end no locks that contexts of agents have opened beside it."""
    yield queue
    await claimed.close_locks()


def announcement(folder: Path, module: str, names: Iterable[str]) -> Path:
    """A folder with a distribution that announces the agents of a module of `tests`."""
    info = folder / f"{module}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
    points = "".join(f"{name} = tests.{module}:{name}\n" for name in names)
    (info / "entry_points.txt").write_text(f"[researchcopilot.agents]\n{points}")
    return folder


@pytest.fixture(scope="session")
def announced(servers: Servers) -> Path:
    """A folder with a distribution that announces the agents of `tests/agents_for_tests.py`."""
    return announcement(servers.folder / "agents", "agents_for_tests", agents_for_tests.NAMES)


@pytest.fixture
def workers(parts: Parts, announced: Path, tmp_path: Path) -> Parts:
    """`parts`, but its workers know the agents for tests, which leave marks in tmp_path."""
    paths = [str(announced), str(ROOT), os.environ.get("PYTHONPATH", "")]
    parts.environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    parts.environment[agents_for_tests.MARKS] = str(tmp_path)
    return parts


@pytest.fixture(scope="session")
def installed(servers: Servers) -> Path:
    """The same for `tests/agents_in_processes.py`, which the processes of isolated runs find."""
    return announcement(servers.folder / "in_processes", "agents_in_processes", ALL)
