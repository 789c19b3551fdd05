"""The watch over the event loop: a loop that does not answer is told, then ends the process; time
in which the whole process stood still is nobody's fault."""

import asyncio
from collections.abc import Iterator
from typing import cast

import pytest

from researchcopilot.storage.renewal import Renewer
from researchcopilot.worker.hands import Hands
from researchcopilot.worker.renewal import RenewalThread

LEASE_S, BLOCKED_S = 15.0, 60.0


class Watch(RenewalThread):
    """Only the watch: nothing is renewed, and the end is noted."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(cast(Renewer, None), Hands(), "w", LEASE_S, BLOCKED_S, loop, lambda: None)
        self.ends = 0

    def look(self, seconds_later: float) -> None:
        self._looked_at -= seconds_later
        self._watch_loop()

    def _end_process(self) -> None:
        self.ends += 1


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """It runs only when a test lets it."""
    made = asyncio.new_event_loop()
    yield made
    made.close()


def answer(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_until_complete(asyncio.sleep(0))


def test_a_loop_that_never_answers_is_told_once_and_ended_in_time(
    loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch(loop)
    watch.look(5)
    for _ in range(11):
        watch.look(5)
    assert watch.ends == 0
    assert caplog.text.count("blocks the event loop, for 15.0 s") == 1
    watch.look(5)
    assert watch.ends == 1


def test_a_loop_that_answers_late_starts_from_nothing(loop: asyncio.AbstractEventLoop) -> None:
    watch = Watch(loop)
    for _ in range(20):
        watch.look(5)
        watch.look(50)
        answer(loop)
        watch.look(5)
        answer(loop)
    assert watch.ends == 0


def test_a_process_that_was_stopped_was_not_blocked(loop: asyncio.AbstractEventLoop) -> None:
    """SIGSTOP in the moment between the question and its answer, for an hour."""
    watch = Watch(loop)
    watch.look(5)
    watch.look(3600)
    assert watch.ends == 0
    answer(loop)
    watch.look(3600)
    watch.look(5)
    assert watch.ends == 0
