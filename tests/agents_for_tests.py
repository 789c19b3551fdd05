"""Agents that misbehave in every way we know of, for workers that run as processes.

A fixture announces them in a distribution that it writes into a temporary folder; the product does
not know them. `MARKS` (a folder, from the environment) is where they leave what a test wants to
see from outside.
"""

import asyncio
import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from researchcopilot.agents.contract import Context, SyncContext
from researchcopilot.core.errors import RetryLater

MARKS = "AGENTS_FOR_TESTS_MARKS"
NAMES = (
    "sleep", "sleep_in_thread", "stubborn", "block", "block_once", "exit_async", "exit_in_task",
    "exit_sync", "exit_in_step", "napping_pool", "come_back",
)  # fmt: skip


def mark(name: str) -> None:
    """Leave a line in a file of that name."""
    folder = os.environ.get(MARKS)
    if folder:
        with (Path(folder) / name).open("a") as file:
            file.write(f"{os.getpid()}\n")


async def sleep(ctx: Context, given: Any) -> Any:
    """Sleeps so many seconds, and says when it began and ended."""
    mark(f"began-{ctx.run.run_id}")
    await asyncio.sleep(given)
    mark(f"ended-{ctx.run.run_id}")
    return {"claim_no": ctx.run.claim_no, "pid": os.getpid()}


def sleep_in_thread(ctx: SyncContext, given: Any) -> Any:
    """A plain function that never looks at `ctx.cancelled`."""
    time.sleep(given)
    return {"thread": threading.current_thread().name}


async def stubborn(ctx: Context, given: Any) -> Any:
    """Swallows its cancellation, and goes on."""
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(given)


async def napping_pool(ctx: Context, given: Any) -> Any:
    """Blocks a thread of the loop's own pool, which Python waits for at its end."""
    await asyncio.to_thread(time.sleep, given)


async def block(ctx: Context, given: Any) -> Any:
    """Blocks the event loop, as an async agent must not."""
    time.sleep(given)  # noqa: ASYNC251
    return {"claim_no": ctx.run.claim_no}


async def block_once(ctx: Context, given: Any) -> Any:
    """Blocks in its first claim, returns in the next."""
    if ctx.run.claim_no == 1:
        time.sleep(given)  # noqa: ASYNC251
    return {"claim_no": ctx.run.claim_no, "pid": os.getpid()}


async def exit_async(ctx: Context, given: Any) -> Any:
    sys.exit(given)


async def exit_in_task(ctx: Context, given: Any) -> Any:
    async def leave() -> None:
        await asyncio.sleep(0)
        sys.exit(given)

    await asyncio.gather(leave(), asyncio.sleep(0.01))


def exit_sync(ctx: SyncContext, given: Any) -> Any:
    sys.exit(given)


def exit_in_step(ctx: SyncContext, given: Any) -> Any:
    return ctx.step("leave", lambda: sys.exit(given))


async def come_back(ctx: Context, given: Any) -> Any:
    """Asks for another attempt after so many seconds."""
    raise RetryLater("not yet", after=given)
