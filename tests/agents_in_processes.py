"""Agents that take their process with them, or would not let go of it: for isolated runs.

A fixture announces them, so that the process of a run finds them as it finds installed ones.
`MARKS` is the folder where they leave the numbers of their processes.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from researchcopilot.agents.contract import Context, SyncContext, agent

MARKS = "AGENTS_IN_PROCESSES_MARKS"
EATEN: list[Any] = [None] * 100_000


def mark(name: str, number: int) -> None:
    (Path(os.environ[MARKS]) / name).write_text(str(number))


async def says_who(ctx: Context, given: Any) -> Any:
    return {"pid": os.getpid(), "group": os.getpgid(0), "parent": os.getppid()}


async def uses_all(ctx: Context, given: Any) -> Any:
    """Everything of a Context, once."""
    await ctx.emit("began", {"at": 1})
    value = await ctx.step("double", lambda: given * 2)
    waited = await ctx.step("later", lambda: asyncio.sleep(0, "waited"))
    [[workspace]] = await ctx.db.rows(b"SELECT name FROM workspaces")
    (ctx.cache_dir / "file").write_text("kept")
    messages = await ctx.messages()
    await ctx.emit("done", {"bad": "a\x00b\ud800"})
    return {
        "steps": [value, waited],
        "workspace": workspace,
        "messages": [[m.role, m.payload, m.created_at.tzinfo is not None] for m in messages],
        "run": [ctx.run.run_id, ctx.run.claim_no, ctx.idempotency_key, ctx.run.input],
        "left": (ctx.deadline - datetime.now(UTC)).total_seconds(),
        "cancelled": ctx.cancelled,
    }


def uses_all_in_thread(ctx: SyncContext, given: Any) -> Any:
    ctx.emit("began", {})
    return [ctx.step("double", lambda: given * 2), len(ctx.messages()), os.getpid()]


def keeps_steps(ctx: SyncContext, given: Any) -> Any:
    """Crashes in its first claim, after a step."""
    value = ctx.step("pid", os.getpid)
    if ctx.run.claim_no == 1:
        os._exit(9)
    return [value, os.getpid()]


@agent(permanent=(LookupError,))
async def raises(ctx: Context, given: Any) -> Any:
    """The error is made, by name, in a step's function."""

    def fails() -> None:
        raise {"KeyError": KeyError, "OSError": OSError}[given]("told here")

    await ctx.step("fails", fails)


async def wrong_steps(ctx: Context, given: Any) -> Any:
    """What is refused by the worker is refused to the agent."""
    told = []
    wrong: Any = (("a", 1), ("a", 2), (7, 3), ("b", {1}))
    for name, value in wrong:
        try:
            await ctx.step(name, lambda value=value: value)  # type: ignore[misc]
        except Exception as error:
            told.append(f"{type(error).__name__}: {error}")
    return told


async def segfault(ctx: Context, given: Any) -> Any:
    ctypes.string_at(0)


def leaves(ctx: SyncContext, given: Any) -> Any:
    os._exit(given)


def kills_itself(ctx: SyncContext, given: Any) -> Any:
    os.kill(os.getpid(), given)
    time.sleep(60)


async def eats(ctx: Context, given: Any) -> Any:
    """To the last crumb of what it may have, but not all that this machine has; and keeps it."""
    hungry = None
    for size, most in ((1_048_576, 2_000), (4_096, 20_000), (64, 100_000)):
        try:
            for place in range(most):
                EATEN[place] = (bytearray(size), EATEN[place])
        except MemoryError as error:
            hungry = error
    if hungry:
        raise hungry


async def naps(ctx: Context, given: Any) -> Any:
    """Blocks its loop, so that it hears nothing."""
    mark("naps", os.getpid())
    time.sleep(given)  # noqa: ASYNC251


async def sleeps(ctx: Context, given: Any) -> Any:
    mark("sleeps", os.getpid())
    await asyncio.sleep(given)
    return "slept"


async def says_so_far(ctx: Context, given: Any) -> Any:
    mark("says_so_far", os.getpid())
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        return "so far"


async def clings(ctx: Context, given: Any) -> Any:
    """Ignores SIGTERM and its cancellation, and so does the program that it has started."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    program = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220
    mark("program", program.pid)
    mark("clings", os.getpid())
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


def forks(ctx: SyncContext, given: Any) -> Any:
    """Leaves a process behind that holds all its files open, the pipe too."""
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    mark(given, pid)
    if given == "crashed":
        os._exit(5)
    return pid


def sockets() -> Iterator[socket.socket]:
    """Every socket that this process has, the pipe to its worker too."""
    for number in range(3, 64):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as end:
                    yield end


def talks_nonsense(ctx: SyncContext, given: Any) -> Any:
    for end in sockets():
        end.send(b"\x00\x00\x00\x03{,}")  # the length is right, the JSON is not
    time.sleep(60)


def hangs_up(ctx: SyncContext, given: Any) -> Any:
    for end in sockets():
        end.shutdown(socket.SHUT_WR)
    time.sleep(60)


NAMES = (
    "says_who", "uses_all", "uses_all_in_thread", "keeps_steps", "raises", "wrong_steps",
    "segfault", "leaves", "kills_itself", "eats", "naps", "sleeps", "says_so_far", "clings",
    "forks", "talks_nonsense", "hangs_up",
)  # fmt: skip
ALL = {name: globals()[name] for name in NAMES}
