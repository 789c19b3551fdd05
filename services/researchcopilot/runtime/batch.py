"""Grouping: who needs the server joins a group; a group goes as soon as the one before is back.

A lone call waits for nobody; a thousand share one round trip. The rules (DESIGN §5 "Group
rules"): a group has at most `max_rows` rows or `max_bytes`; the waiting line is bounded, then
`Busy`; a failure that `again` recognises (deadlock, a server that went away) sends the same group
once more, any other halves it until the poisoned member stands alone; one that may pass but is of
a member (`apart`: somebody has locked its row) halves it too, and that member waits beside the
line; a cancelled caller never cancels its group, since the others are in it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from prometheus_client import Histogram

from researchcopilot.core.backoff import reconnect_delays
from researchcopilot.core.errors import Busy

T = TypeVar("T")
R = TypeVar("R")
log = logging.getLogger(__name__)
SIZES = Histogram(
    "researchcopilot_group_size",
    "Members of a group that was sent together",
    ["group"],
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """`patience_s`: how long a failure that may pass is repeated; None means for ever."""

    max_rows: int = 500
    max_bytes: int = 4_000_000
    max_waiting: int = 10_000
    patience_s: float | None = 10.0


@dataclass(slots=True)
class _Member(Generic[T, R]):
    item: T
    rows: int
    size: int
    future: asyncio.Future[R]


class Group(Generic[T, R]):
    """Calls of `send` with many items at once; `await group(item)` gives that item's result.

    `send` takes n items and returns n results in the same order, or raises. It must be safe to
    repeat, since an answer can be lost after a commit.
    """

    def __init__(
        self,
        send: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
        *,
        again: Callable[[BaseException], bool] = lambda error: False,
        apart: Callable[[BaseException], bool] = lambda error: False,
        limits: Limits | None = None,
        lanes: int = 1,
        name: str = "other",
    ) -> None:
        self._send = send
        self._again = again
        self._apart = apart
        self._beside = asyncio.Lock()  # one at a time: each takes a connection from all others
        self._limits = limits or Limits()
        self._waiting: deque[_Member[T, R]] = deque()
        self._lanes = lanes
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._sizes = SIZES.labels(name)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def __call__(self, item: T, *, rows: int = 1, size: int = 0) -> R:
        """Join the next group and wait for the result. Raises Busy when the line is full."""
        return await self.join(item, rows=rows, size=size)

    def join(self, item: T, *, rows: int = 1, size: int = 0) -> asyncio.Future[R]:
        """The same without waiting: a future of the result. Raises Busy when the line is full."""
        if len(self._waiting) >= self._limits.max_waiting:
            raise Busy(f"{len(self._waiting)} callers are waiting already; try again in a moment.")
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Member(item, rows, size, future))
        if self._running < self._lanes:
            self._start_lane()
        return future

    async def close(self) -> None:
        """Wait until everything that waits has been sent."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start_lane(self) -> None:
        self._running += 1
        self._start(self._run_lane())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_lane(self) -> None:
        # The lane is given back in the same step that finds the line empty. Were it done by a
        # callback of the task, a caller that joins in between would wait for nobody.
        try:
            while self._waiting:
                await self._deliver(self._next())
        finally:
            self._running -= 1

    def _next(self) -> list[_Member[T, R]]:
        group: list[_Member[T, R]] = []
        rows = size = 0
        while self._waiting:
            member = self._waiting[0]
            rows += member.rows
            size += member.size
            if group and (rows > self._limits.max_rows or size > self._limits.max_bytes):
                break
            group.append(self._waiting.popleft())
        return group

    async def _deliver(self, group: list[_Member[T, R]]) -> None:
        self._sizes.observe(len(group))
        try:
            results = await self._send_patiently([member.item for member in group])
        except Exception as error:
            apart = self._apart(error)
            if len(group) > 1 and (apart or not self._again(error)):
                middle = len(group) // 2
                await self._deliver(group[:middle])
                await self._deliver(group[middle:])
            elif apart:
                self._start(self._deliver_beside(group[0], error))
            else:
                self._fail(group, error)
        except BaseException as error:
            self._fail(group, error)
            raise
        else:
            for member, result in zip(group, results, strict=True):
                if not member.future.done():
                    member.future.set_result(result)

    async def _deliver_beside(self, member: _Member[T, R], why: Exception) -> None:
        """It waits for somebody who may keep it waiting for long, and keeps nobody else waiting."""
        try:
            async with asyncio.timeout(self._limits.patience_s):
                await self._beside.acquire()
        except TimeoutError:
            self._fail([member], why)
            return
        try:
            [result] = await self._send_patiently([member.item], beside=True)
        except BaseException as error:
            self._fail([member], error)
            if not isinstance(error, Exception):
                raise
        else:
            if not member.future.done():
                member.future.set_result(result)
        finally:
            self._beside.release()

    async def _send_patiently(self, items: list[T], *, beside: bool = False) -> Sequence[R]:
        loop = asyncio.get_running_loop()
        patience = self._limits.patience_s
        give_up = None if patience is None else loop.time() + patience
        delays = reconnect_delays()
        while True:
            try:
                return _complete(items, await self._send(items))
            except Exception as error:
                passes = self._again(error) and (beside or not self._apart(error))
                if not passes or (give_up is not None and loop.time() > give_up):
                    raise
                log.warning("a group of %d is sent again: %s", len(items), error)
            await asyncio.sleep(next(delays))

    @staticmethod
    def _fail(group: list[_Member[T, R]], error: BaseException) -> None:
        for member in group:
            if not member.future.done():
                member.future.set_exception(error)


def _complete(items: Sequence[T], results: Sequence[R]) -> Sequence[R]:
    """A send that forgets somebody is an error of its group: else he would wait for ever."""
    if len(items) != len(results):
        raise RuntimeError(f"{len(results)} results came back for a group of {len(items)}")
    return results
