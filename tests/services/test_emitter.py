"""Progress that an agent tells: it is dropped and counted rather than waited for."""

import time
from collections.abc import Iterator

import pytest
from tests.chaos.detour import line_to, over
from tests.chaos.proxy import Line, Way
from tests.support import metric

from researchcopilot.core.ids import new_id
from researchcopilot.core.settings import RedisSettings, Settings
from researchcopilot.storage.events import Event, read
from researchcopilot.storage.queue import Queue
from researchcopilot.worker.emitter import MOMENT_S, Emitter

pytestmark = pytest.mark.anyio


@pytest.fixture
def line(settings: Settings) -> Iterator[Line]:
    with line_to(settings.redis.url) as line:
        yield line


async def test_a_redis_that_answers_nothing_holds_an_agent_up_for_a_moment_only(
    line: Line, settings: Settings, queue: Queue
) -> None:
    """Protects: one-way trouble of the network costs progress, not minutes of a run. Red without
    the limit in `emit`: then it is the client's time-out, of six seconds, for each event."""
    behind = Queue(RedisSettings(url=over(line, settings.redis.url)))
    emitter, run_id = Emitter(behind), new_id()
    await emitter.emit(Event(run_id, 1, 1, "part", "1"))
    before = metric("researchcopilot_events_given_up_total")
    with line.closed(Way.BACK, late=True):
        began = time.monotonic()
        await emitter.emit(Event(run_id, 1, 2, "part", "2"))
        assert time.monotonic() - began < MOMENT_S + 1.5
    assert metric("researchcopilot_events_given_up_total") == before + 1
    await emitter.emit(Event(run_id, 1, 3, "part", "3"))
    assert [id_ for id_, _, _ in await read(queue, run_id)] == ["1-1", "1-2", "1-3"]
    await behind.close()
