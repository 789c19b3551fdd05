"""Loops end on signals; an error never ends an upkeep loop; a process that was told to stop stops,
whoever in it does not."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from researchcopilot.core.errors import Unavailable
from researchcopilot.dev.parts import child_environment
from researchcopilot.runtime import loop
from researchcopilot.runtime.loop import Beat, Stop, every, until_available

pytestmark = pytest.mark.anyio


async def test_asked_once_and_asked_twice() -> None:
    stop = Stop()
    seen = []
    for _ in range(3):
        seen.append((stop.is_set, stop.insisted.is_set()))
        stop()
    assert seen == [(False, False), (True, False), (True, True)]
    assert await stop.wait(60) is True


async def test_a_pause_ends_when_asked() -> None:
    stop = Stop()
    assert await stop.wait(0.01) is False
    pausing = asyncio.create_task(stop.wait(60))
    await asyncio.sleep(0)
    stop()
    assert await asyncio.wait_for(pausing, 1) is True


async def test_signals_of_the_process_ask() -> None:
    stop = Stop()
    stop.listen()
    try:
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(stop.asked.wait(), 1)
        signal.raise_signal(signal.SIGINT)
        await asyncio.wait_for(stop.insisted.wait(), 1)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)


async def test_a_duty_that_fails_is_told_and_tried_again() -> None:
    stop, told = Stop(), []
    outcomes: list[Any] = [Unavailable("away"), ValueError("a fault"), None]

    async def duty() -> None:
        outcome = outcomes.pop(0)
        if not outcomes:
            stop()
        if outcome is not None:
            raise outcome

    await asyncio.wait_for(
        every(0.001, duty, stop, name="d", failed=lambda name: told.append(("failed", name)),
              done=lambda name: told.append(("done", name))), 5,
    )  # fmt: skip
    assert told == [("failed", "d"), ("failed", "d"), ("done", "d")]


async def test_a_round_that_hangs_does_not_keep_the_loop_from_ending(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop, "ROUND_S", 0.05)
    stop, cancelled = Stop(), []

    async def duty() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    running = asyncio.create_task(every(60, duty, stop, name="hanging"))
    await asyncio.sleep(0)
    stop()
    await asyncio.wait_for(running, 2)
    assert cancelled == [1]
    assert "hanging is left in the middle" in caplog.text


async def test_a_round_under_way_may_end_when_asked() -> None:
    stop, done = Stop(), []

    async def duty() -> None:
        stop()
        await asyncio.sleep(0.02)
        done.append(1)

    await asyncio.wait_for(every(60, duty, stop, name="d"), 2)
    assert done == [1]


async def test_until_available_waits_for_a_server_and_for_nothing_else() -> None:
    stop, tries = Stop(), []

    async def attempt() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise Unavailable("not yet")

    assert await until_available(attempt, stop, what="it") is True
    assert len(tries) == 3

    async def wrong() -> None:
        raise ValueError("a fault")

    with pytest.raises(ValueError, match="a fault"):
        await until_available(wrong, stop, what="it")


async def test_until_available_gives_up_when_asked_also_in_the_middle_of_an_attempt() -> None:
    stop, begun = Stop(), asyncio.Event()

    async def hangs() -> None:
        begun.set()
        await asyncio.sleep(60)

    waiting = asyncio.create_task(until_available(hangs, stop, what="it"))
    await asyncio.wait_for(begun.wait(), 1)
    stop()
    assert await asyncio.wait_for(waiting, 1) is False


async def test_who_waits_can_be_cancelled_and_takes_its_attempt_along() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hangs() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    waiting = asyncio.create_task(until_available(hangs, Stop(), what="it"))
    await asyncio.wait_for(begun.wait(), 1)
    waiting.cancel()
    await asyncio.wait_for(ended.wait(), 1)


def test_a_beat_grows_old() -> None:
    beat = Beat()
    beat._last -= 5
    assert 5 <= beat.age < 6
    beat.mark()
    assert beat.age < 1


LEFT = {
    "nothing": "",
    "a task that swallows its cancellation": """
    async def stubborn():
        while True:
            try: await asyncio.sleep(60)
            except asyncio.CancelledError: pass
    asyncio.create_task(stubborn())
    await asyncio.sleep(0)
""",
    "a thread of the loop's pool": """
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)
""",
}


@pytest.mark.parametrize("left", LEFT)
def test_whatever_is_left_the_process_ends_with_its_code(left: str) -> None:
    code = (
        "import asyncio, sys, time\nfrom researchcopilot.runtime.loop import run\n"
        f"async def main():\n    pass\n{LEFT[left]}\n    return 7\nsys.exit(run(main()))\n"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        timeout=30,
        env=child_environment(os.environ),
    )
    assert done.returncode == 7, done.stderr
    assert time.monotonic() - started < 8
