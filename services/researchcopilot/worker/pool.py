"""The loop's pool of threads, where `asyncio.to_thread` goes: it knows which run each work is of.

Cancelling an agent that waits for such work ends the waiting and not the work. Left alone it would
take a thread from all other runs without anybody knowing; here it is seen and counted among the
lost. Threads and pools that an agent makes for itself cannot be seen.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Work:
    """Of one run. `thread` is None until it has begun."""

    future: Future[Any] = field(init=False)
    thread: threading.Thread | None = None


_of_this_run: ContextVar[set[Work] | None] = ContextVar("of_this_run", default=None)


def followed() -> set[Work]:
    """What is asked of the pool from here on, by this task and those that it starts, as long as it
    is under way. Threads change this set: take a copy to look at it."""
    works: set[Work] = set()
    _of_this_run.set(works)
    return works


class AgentPool(ThreadPoolExecutor):
    """As large as asyncio's own, also when as many threads are lost as may be."""

    def __init__(self, most_lost: int) -> None:
        super().__init__(min(32, (os.cpu_count() or 1) + 4) + most_lost, "pool")

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        works = _of_this_run.get()
        if works is None:
            return super().submit(fn, *args, **kwargs)
        work = Work()

        def begin() -> T:
            work.thread = threading.current_thread()
            return fn(*args, **kwargs)

        works.add(work)
        work.future = future = super().submit(begin)
        future.add_done_callback(lambda _: works.discard(work))
        return future
