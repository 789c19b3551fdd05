"""Events of an agent: said once, in order, and never taken for said when Redis has refused them."""

from typing import Any

import pytest
from tests.support import prompt

from researchcopilot.core.errors import Unavailable
from researchcopilot.core.ids import new_id
from researchcopilot.core.settings import Settings
from researchcopilot.storage.events import Event, append, read
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


async def test_an_event_that_redis_refuses_is_no_event_that_was_said(
    settings: Settings, queue: Queue
) -> None:
    """Protects: a Redis that is full, read-only or without a disk; the emitter sends again, and
    counts what it gives up. Red while `append` takes every refusal for that of a fence."""
    run_id = new_id()
    events = [Event(run_id, 1, n, "part", str(n)) for n in (1, 2)]
    with prompt(settings) as client:
        limit: Any = client.config_get("maxmemory")
        client.config_set("maxmemory", "1")
        try:
            with pytest.raises(Unavailable, match="maxmemory"):
                await append(queue, events)
        finally:
            client.config_set("maxmemory", limit["maxmemory"])
    assert await read(queue, run_id) == []
    for _ in range(2):  # sent again, as if the answer had been lost
        await append(queue, events)
    await append(queue, [Event(run_id, 0, 9, "part", "late")])  # of an earlier claim: fenced
    assert [(id_, text) for id_, _, text in await read(queue, run_id)] == [
        ("1-1", "1"), ("1-2", "2"),
    ]  # fmt: skip
