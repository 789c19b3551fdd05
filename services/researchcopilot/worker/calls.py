"""One call of an agent, in a task or a thread: started, told to stop, and asked what came of it.

An agent can end its run and never its worker: SystemExit is caught wherever an agent can raise it,
also in tasks that it starts itself (`contain_tasks`), since there it would end the event loop, and
with it every other run of this process.
"""

import asyncio
import contextvars
import threading
import traceback
from collections.abc import Coroutine, Iterator
from types import FrameType
from typing import Any

from researchcopilot.agents.contract import Context, SyncContext
from researchcopilot.agents.policy import RetryPolicy
from researchcopilot.agents.registry import Agent
from researchcopilot.core.errors import AgentCancelled, AgentExited, Permanent
from researchcopilot.worker.judge import Failure, judge
from researchcopilot.worker.result import encode_result, only_one
from researchcopilot.worker.threads import run_in_thread, stack_of

_of_an_agent = contextvars.ContextVar("of_an_agent", default=False)


class Call:
    """An agent under way; it has `begun` at once. `stack`: what it did when it was told to stop."""

    def __init__(self, agent: Agent, context: Context, given: Any) -> None:
        self.thread: threading.Thread | None = None
        self.stack = ""
        self.future: asyncio.Future[Any]
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begun.set_result(None)
        if agent.blocking:
            sync = SyncContext(context, asyncio.get_running_loop())
            self.future, self.thread = run_in_thread(lambda: agent.fn(sync, given), agent.name)
        else:
            self.future = asyncio.create_task(_guarded(agent, context, given))

    async def stop(self, grace_s: float) -> bool:
        """Tell it to stop; False if it goes on."""
        self.stack = self.where()
        self.cancel()
        await asyncio.wait((self.future,), timeout=grace_s)
        return self.future.done()

    def cancel(self) -> None:
        """A thread cannot be told but by `ctx.cancelled`."""
        if self.thread is None:
            self.future.cancel()

    def ended(self, policy: RetryPolicy, limit: int) -> str | Failure:
        """The text of its result, or what its failure means."""
        error = self.error()
        if error is None:
            try:
                return encode_result(self.future.result(), limit)
            except Permanent as refused:
                error = refused
        return judge(error, policy)

    def error(self) -> BaseException | None:
        """What it raised; None if it returned."""
        if not self.future.done():
            return asyncio.CancelledError()
        try:
            error = self.future.exception()
        except asyncio.CancelledError as cancelled:
            error = AgentCancelled(
                "The agent ended with CancelledError, and nobody had asked it to stop: something "
                "that it awaited was cancelled. The trace shows where."
            )
            error.__cause__ = cancelled
        if isinstance(error, SystemExit | KeyboardInterrupt):
            return _exited(error)
        return None if error is None else only_one(error)

    def where(self) -> str:
        """The stack of what it is doing now."""
        if self.thread is not None:
            return stack_of(self.thread)
        assert isinstance(self.future, asyncio.Task)
        frames = [(frame, frame.f_lineno) for frame in _awaited(self.future.get_coro())]
        return "".join(traceback.StackSummary.extract(iter(frames)).format())


def _awaited(coroutine: Any) -> Iterator[FrameType]:
    """The frames of a suspended coroutine, outermost first."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            return
        yield frame
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)


async def _guarded(agent: Agent, context: Context, given: Any) -> Any:
    _of_an_agent.set(True)
    try:
        return await agent.fn(context, given)
    except (SystemExit, KeyboardInterrupt) as error:
        raise _exited(error) from error


class _Contained(Coroutine[Any, Any, Any]):
    """A coroutine that cannot exit. An object and no coroutine around it: cancelled before its
    first step, it is closed like any other, and nobody warns that it was never awaited."""

    def __init__(self, inner: Coroutine[Any, Any, Any]) -> None:
        self._inner = inner

    def send(self, value: Any) -> Any:
        try:
            return self._inner.send(value)
        except (SystemExit, KeyboardInterrupt) as error:
            raise _exited(error) from error

    def throw(self, *error: Any) -> Any:
        try:
            return self._inner.throw(*error)
        except (SystemExit, KeyboardInterrupt) as raised:
            raise _exited(raised) from raised

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Any:
        return self._inner.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # cr_frame and the like, for those who show stacks


def contain_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Let no task that an agent starts end the loop."""

    def make(
        loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        if _of_an_agent.get():
            coroutine = _Contained(coroutine)
        return asyncio.Task(coroutine, loop=loop, **options)

    loop.set_task_factory(make)  # type: ignore[arg-type]


def _exited(error: BaseException) -> AgentExited:
    what = f"raised {type(error).__name__}"
    if isinstance(error, SystemExit):
        what = f"called sys.exit({error.code!r})"
    exited = AgentExited(
        f"The agent {what}. That ends its run and never its worker: return a result, or raise "
        "Permanent or RetryLater."
    )
    exited.__cause__ = error
    return exited
