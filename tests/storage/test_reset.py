"""Connections that the other side resets (RST): what a server that died leaves behind, or a
gateway that has forgotten us. Both loops of Python tell it in their own words."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest
import uvloop
from tests.chaos.detour import line_to, over, port_of
from tests.chaos.proxy import Line, Network
from tests.storage.test_queue import WORKER, entries
from tests.support import eventually

from researchcopilot.core.errors import Unavailable
from researchcopilot.core.settings import DatabaseSettings, RedisSettings, Settings
from researchcopilot.storage.db import Database
from researchcopilot.storage.lock import Locks
from researchcopilot.storage.queue import Queue

LOOPS = (asyncio.new_event_loop, uvloop.new_event_loop)


@pytest.fixture
def line(redis_url: str) -> Iterator[Line]:
    with line_to(redis_url) as line:
        yield line


@pytest.mark.parametrize("loop_factory", LOOPS, ids=["asyncio", "uvloop"])
def test_a_connection_that_was_reset_is_unavailable_once_and_then_made_anew(
    line: Line, redis_url: str, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Protects: nothing but Unavailable comes out of the door to Redis; anything else ends a
    starting worker and loses a push. Red without the RuntimeError of `told`."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_reset_again_and_again(line, RedisSettings(url=over(line, redis_url))))


async def _reset_again_and_again(line: Line, settings: RedisSettings) -> None:
    queue, locks = Queue(settings), Locks(settings)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "push": lambda: queue.push("runs", entries(1)),
        "take": lambda: queue.take("runs", WORKER, 1),
        "wait": lambda: queue.wait("runs", WORKER),
        "pipeline": lambda: queue.depths("runs"),
        "lock": lambda: _hold(locks),
    }
    for name, call in calls.items():
        for _ in range(3):
            await _some_time("push", calls["push"])
            await _some_time(name, call)
            assert await asyncio.to_thread(line.cut) > 0
            await _some_time(name, call)
    await locks.close()
    await queue.close()


async def _some_time(name: str, call: Callable[[], Awaitable[object]]) -> None:
    """It is refused at most once for each connection that was cut."""
    for _ in range(5):
        try:
            await call()
            return
        except Unavailable:
            continue
    raise AssertionError(f"{name} does not come back")


async def _hold(locks: Locks) -> None:
    async with locks.hold("any", ttl_s=5.0) as held:
        assert held is not None


def test_who_waits_in_line_is_served_as_soon_as_postgres_is_back(
    settings: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects: a Postgres that restarts in a few seconds costs those seconds. Red while the pool
    tries again only for those who come anew: a lone lane then waits out its ten seconds."""
    monkeypatch.setattr("researchcopilot.storage.db.RECONNECT_S", 0.5)
    network, server = Network(), {"port": port_of(settings.database.url)}
    line = network.line("database", "Postgres", lambda: server["port"])
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            db = Database(DatabaseSettings(url=over(line, settings.database.url)))
            runner.run(_wait_in_line(line, server, db, caplog))
    finally:
        network.close()


async def _wait_in_line(
    line: Line, server: dict[str, int], db: Database, told: pytest.LogCaptureFixture
) -> None:
    await db.open()
    port = server["port"]
    try:
        assert await db.rows(b"SELECT 1") == [(1,)]
        server["port"] = 1  # nobody listens there
        lost = await asyncio.to_thread(line.cut)
        waits = await _stand_in_line(db)
        # Once for each connection that was lost and for this call; then nobody would try again.
        await eventually(lambda: len(given_up(told)) > lost + 1, 9.0)
        server["port"] = port
        async with asyncio.timeout(5.0):
            assert await waits == [(1,)]
    finally:
        await db.close()


async def _stand_in_line(db: Database) -> "asyncio.Task[list[Any]]":
    """A query that waits for a connection; the dead ones are given out before."""
    while True:
        query = asyncio.create_task(db.rows(b"SELECT 1"))
        await eventually(partial(_done_or_waiting, db, query))
        if not query.done():
            return query
        with pytest.raises(Unavailable):
            await query


def _done_or_waiting(db: Database, query: "asyncio.Task[list[Any]]") -> bool:
    return query.done() or db.pool.get_stats().get("requests_waiting", 0) > 0


def given_up(told: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in told.messages if "reconnection attempt" in message]
