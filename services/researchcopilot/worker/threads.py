"""Threads for sync agents: one daemon thread a call, so that an agent which never returns cannot
keep the process from ending, as it would in a pool of `concurrent.futures`."""

import asyncio
import contextvars
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from researchcopilot.core.errors import AgentCrashed


def run_in_thread(fn: Callable[[], Any], name: str) -> tuple[asyncio.Future[Any], threading.Thread]:
    """A future of what `fn` returns or raises, and its thread, which nothing can stop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def work() -> None:
        result: Any = None
        failure: BaseException | None = None
        try:
            result = context.run(fn)
        except StopIteration as error:
            # A future refuses StopIteration, which would leave the run waiting for ever.
            failure = RuntimeError(f"the agent raised StopIteration: {error.value!r}")
            failure.__cause__ = error
        except BaseException as error:
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:
            return  # the loop has ended; the lease will tell

    thread = threading.Thread(target=work, name=f"agent-{name}", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        # Of this run, which is tried again: its worker would be called dead for it.
        settle(
            None,
            AgentCrashed(
                f"No thread can be started for this run: {error}. Give the worker fewer slots, or "
                "more memory and processes (pids.max, ulimit -u)."
            ),
        )
    return future, thread


def stack_of(thread: threading.Thread | None) -> str:
    """What it is doing now; nothing if it has ended."""
    frame = sys._current_frames().get((thread and thread.ident) or 0)
    return "".join(traceback.format_stack(frame)) if frame else ""
