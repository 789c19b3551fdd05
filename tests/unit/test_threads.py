"""A thread of a sync agent that cannot be started is an error of that run, not of its worker."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from researchcopilot.core.errors import AgentCrashed
from researchcopilot.worker.threads import run_in_thread

pytestmark = pytest.mark.anyio


@pytest.fixture
def no_thread() -> Iterator[None]:
    """As at a limit of processes: the kernel refuses every new one, here for want of room."""
    before = threading.stack_size(1 << 47)
    try:
        yield
    finally:
        threading.stack_size(before)


async def test_a_thread_that_cannot_be_started(no_thread: None) -> None:
    future, thread = run_in_thread(lambda: 1, "it")
    with pytest.raises(AgentCrashed, match="No thread can be started for this run"):
        await asyncio.wait_for(future, 5)
    assert not thread.is_alive()
