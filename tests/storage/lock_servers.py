"""What locks are tested on: Valkey, and every other server that this machine has: `redis-server` on
the PATH, and what TESTS_REDIS_SERVERS names (paths, separated by colons).
"""

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest
import redis
from tests.conftest import Servers

from researchcopilot.core.settings import RedisSettings
from researchcopilot.dev import ports
from researchcopilot.dev.processes import Child, until
from researchcopilot.dev.users import give, server_user
from researchcopilot.storage.db import Database
from researchcopilot.storage.lock import Locks

OTHERS = [
    path
    for path in (
        shutil.which("redis-server"),
        *os.environ.get("TESTS_REDIS_SERVERS", "").split(":"),
    )
    if path
]


@dataclass
class Server:
    """A server to test against, and a plain client of it."""

    url: str
    client: redis.Redis
    child: Child

    def locks(self, db: Database | None = None) -> Locks:
        return Locks(RedisSettings(url=self.url), db)


@pytest.fixture(scope="module", params=["valkey", *OTHERS])
def server(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Server]:
    if request.param == "valkey":
        with redis.Redis.from_url(servers.valkey.url, decode_responses=True) as client:
            yield Server(servers.valkey.url, client, servers.valkey.child)
        return
    child, url = another(request.param, servers)
    try:
        with redis.Redis.from_url(url, decode_responses=True) as client:
            assert until(lambda: answers(client), 10), child.tail()
            yield Server(url, client, child)
    finally:
        child.kill()


def another(binary: str, servers: Servers) -> tuple[Child, str]:
    """A server of its own: that binary, on a free port."""
    port = ports.free_port("127.0.0.1")
    folder = servers.folder / f"another-{port}"
    folder.mkdir(mode=0o711)
    user = server_user()
    give(folder, user)
    command = [binary, "--port", str(port), "--save", "", "--dir", str(folder)]
    log = servers.folder / f"another-{port}.log"
    child = Child("another redis", command, guard=servers.guard, log=log, user=user)
    child.start()
    return child, f"redis://127.0.0.1:{port}/0"


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


@pytest.fixture
async def locks(server: Server, anyio_backend: str) -> AsyncIterator[Locks]:
    server.client.flushall()
    opened = server.locks()
    yield opened
    await opened.close()
