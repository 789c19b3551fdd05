"""Connections that the other side resets (RST): what a server that died leaves behind, or a
gateway that has forgotten us. Both loops of Python tell it in their own words."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
import uvloop
from tests.chaos.proxy import Line, Network
from tests.storage.test_queue import WORKER, entries

from researchcopilot.core.errors import Unavailable
from researchcopilot.core.settings import RedisSettings
from researchcopilot.storage.lock import Locks
from researchcopilot.storage.queue import Queue

LOOPS = (asyncio.new_event_loop, uvloop.new_event_loop)


@pytest.fixture
def line(redis_url: str) -> Iterator[Line]:
    port = int(redis_url.rpartition(":")[2].partition("/")[0])
    network = Network()
    yield network.line("queue", "Redis", lambda: port)
    network.close()


@pytest.mark.parametrize("loop_factory", LOOPS, ids=["asyncio", "uvloop"])
def test_a_connection_that_was_reset_is_unavailable_once_and_then_made_anew(
    line: Line, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Protects: nothing but Unavailable comes out of the door to Redis; anything else ends a
    starting worker and loses a push. Red without the RuntimeError of `told`."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_reset_again_and_again(line))


async def _reset_again_and_again(line: Line) -> None:
    settings = RedisSettings(url=f"redis://127.0.0.1:{line.port}/0")
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
