"""A login that Redis refuses: a part says so and is not ready, so that a roll-out stops; it goes on
by itself once the login is right."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import redis
from tests.conftest import Parts, Servers

from researchcopilot.dev.processes import until

NAME = "rotated"


@pytest.fixture
def client(servers: Servers) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(servers.valkey.url, decode_responses=True) as opened:
        yield opened
        opened.acl_deluser(NAME)


@pytest.mark.parametrize("name", ["janitor", "scheduler", "worker"])
def test_a_refused_login_is_not_ready(parts: Parts, client: redis.Redis, name: str) -> None:
    """Protects: what Kubernetes would replace by it goes on working; the reason is on /readyz."""
    there = urlsplit(parts.environment["RC_REDIS_URL"])
    url = f"redis://{NAME}:secret@{there.netloc}{there.path}"
    if there.query:
        url += f"?{there.query}"
    part = parts.launch(name, RC_REDIS_URL=url)
    assert until(lambda: "refuses the login" in (part.complaint() or ""), 15), part.child.tail()
    client.acl_setuser(NAME, enabled=True, passwords=["+secret"], keys=["*"], channels=["*"],
                       commands=["+@all"])  # fmt: skip
    part.wait_ready()
