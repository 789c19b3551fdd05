"""A subscribed connection: however long nobody says a word, it is kept while its server answers,
and given up when nothing comes back. With both protocols: an answer looks different in each.
"""

import asyncio
import os
import signal
from contextlib import aclosing
from dataclasses import replace

import pytest
from tests.conftest import Servers

from researchcopilot.core.errors import Unavailable
from researchcopilot.core.settings import Settings
from researchcopilot.storage import queue as queues
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
async def either(
    request: pytest.FixtureRequest, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Queue:
    """A queue whose subscriptions are asked after one second, and given up after three."""
    monkeypatch.setattr(queues, "PINGS", (1,))
    monkeypatch.setattr(queues, "SILENT", 3)
    given = settings.redis
    mark = "&" if "?" in given.url else "?"
    return Queue(replace(given, url=f"{given.url}{mark}protocol={request.param}"))


async def test_silence_is_no_loss(either: Queue) -> None:
    """Protects: an idle worker or scheduler is not deaf for seconds, again and again."""
    heard = 0
    async with asyncio.timeout(20), aclosing(either.published("nobody-talks")) as told:
        async for what in told:
            assert what is None
            heard += 1
            if heard > 2 * queues.SILENT:
                break
    await either.close()


async def test_a_server_that_says_nothing_is_given_up(either: Queue, servers: Servers) -> None:
    """Protects: a connection that nothing comes back on is noticed, and not waited on for ever."""
    told = either.published("nobody-talks")
    assert await anext(told) is None
    os.kill(servers.valkey.child.pid, signal.SIGSTOP)
    try:
        with pytest.raises(Unavailable, match="no word from it"):
            async with asyncio.timeout(20):
                async for _ in told:
                    pass
    finally:
        os.kill(servers.valkey.child.pid, signal.SIGCONT)
    await either.close()
