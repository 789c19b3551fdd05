"""The contract between an agent and its worker.

    async def answer(ctx: Context, input: Any) -> Any: ...

A plain `def` is an agent too: it runs in a thread and is given a `SyncContext`. Whatever it
returns must be JSON. An agent is run at least once: everything that must not happen twice goes
through `ctx.step` or is sent with `ctx.idempotency_key`. What goes on in a thread (a plain `def`,
or `asyncio.to_thread`) cannot be stopped from outside: it looks at `ctx.cancelled`, or is short.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from researchcopilot.agents.policy import ErrorTypes, RetryPolicy
from researchcopilot.core.models import Claim, Message
from researchcopilot.storage.db import Database
from researchcopilot.storage.lock import Locks

F = TypeVar("F", bound=Callable[..., Any])


class Context(Protocol):
    """What an agent may use. All of it belongs to one claim of one run."""

    @property
    def run(self) -> Claim:
        """The run: run_id, session_id, workspace_id, claim_no, attempts, metadata, …"""

    @property
    def deadline(self) -> datetime:
        """When this claim's time-out or the run's deadline ends it, whichever is first (aware)."""

    @property
    def cancelled(self) -> bool:
        """True once somebody asked for the run to stop; async agents are also cancelled."""

    @property
    def idempotency_key(self) -> str:
        """The same for every claim of this run: send it with effects outside the database."""

    @property
    def db(self) -> Database:
        """The database, for the agents that come along."""

    @property
    def locks(self) -> Locks:
        """Locks by name, one holder among all workers, for the agents that come along."""

    @property
    def cache_dir(self) -> Path:
        """A folder of this worker for files that can be fetched again."""

    async def messages(self) -> list[Message]:
        """The session's messages up to now, oldest first, at most the last 200."""

    async def emit(self, kind: str, data: dict[str, Any]) -> None:
        """Tell those who watch this run of progress. Never fails the run."""

    async def step(self, name: str, fn: Callable[[], Any]) -> Any:
        """The value of `fn()` (or what it awaits), kept: a later claim gets it without calling.

        Values are JSON. One name twice in one claim raises DuplicateStep. While the lease is in
        doubt this waits; when the claim is lost it raises LostClaim.
        """


@dataclass(frozen=True, slots=True)
class SyncContext:
    """The same for a sync agent in its thread: calls block until the loop has answered."""

    inner: Context
    loop: asyncio.AbstractEventLoop

    @property
    def run(self) -> Claim:
        return self.inner.run

    @property
    def deadline(self) -> datetime:
        return self.inner.deadline

    @property
    def cancelled(self) -> bool:
        return self.inner.cancelled

    @property
    def idempotency_key(self) -> str:
        return self.inner.idempotency_key

    def messages(self) -> list[Message]:
        return cast(list[Message], self._wait(self.inner.messages()))

    def emit(self, kind: str, data: dict[str, Any]) -> None:
        self._wait(self.inner.emit(kind, data))

    def step(self, name: str, fn: Callable[[], Any]) -> Any:
        """`fn` runs here, in the agent's own thread: what it opened there it may use there."""
        wanted: Future[bool] = Future()
        value: Future[Any] = Future()

        def ask() -> Awaitable[Any]:
            wanted.set_result(True)
            return asyncio.wrap_future(value)

        async def call() -> Any:
            try:
                return await self.inner.step(name, ask)
            finally:
                if not wanted.done():
                    wanted.set_result(False)

        answer = asyncio.run_coroutine_threadsafe(call(), self.loop)
        if wanted.result():
            _settle(value, fn)
        return answer.result()

    def _wait(self, call: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await call

        return asyncio.run_coroutine_threadsafe(wait(), self.loop).result()


def _settle(value: Future[Any], fn: Callable[[], Any]) -> None:
    """What `fn` returns or raises. SystemExit must not reach the loop, which it would end; a
    future refuses StopIteration."""
    try:
        value.set_result(fn())
    except Exception as error:
        if isinstance(error, StopIteration):
            error = RuntimeError(f"the step raised StopIteration: {error.value!r}")
        value.set_exception(error)
    except BaseException:
        value.cancel()
        raise


@dataclass(frozen=True, slots=True)
class Remembered:
    """What is kept of a run for later ones. `tokens`: by what it is found; `text`: a sentence a
    line."""

    question: str
    text: str
    tokens: tuple[str, ...]


# From a run's input and its result, as plain JSON; None: this one is not worth it.
Remember = Callable[[Any, Any], Remembered | None]


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What an agent says of itself; see `agent`."""

    version: str = "1"
    queue: str = "runs"
    description: str = ""
    input_schema: dict[str, Any] | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    digest: bool = False
    remember: Remember | None = None


def agent(
    *,
    version: str = "1",
    queue: str = "runs",
    description: str = "",
    input_schema: dict[str, Any] | None = None,
    max_attempts: int = 3,
    retry_base_s: float | None = None,
    retry_cap_s: float | None = None,
    permanent: ErrorTypes = (),
    retry_on: ErrorTypes | None = None,
    digest: bool = False,
    remember: Remember | None = None,
) -> Callable[[F], F]:
    """Say more about an agent than its function does. Optional.

    `queue` is where its runs go if the request names none; `description` is the first line of
    the docstring unless given; `input_schema` is JSON Schema of the input. `max_attempts` to
    `retry_on` say when a failed attempt is followed by another, see `RetryPolicy`. What follows a
    success is committed with it: with `digest` a run that sums it up some minutes later; with
    `remember`, a pure function that is called in the worker, a memory for later runs.
    """
    retry = RetryPolicy(max_attempts, retry_base_s, retry_cap_s, permanent, retry_on)

    def mark(fn: F) -> F:
        line = (fn.__doc__ or "").strip().partition("\n")[0]
        options = AgentOptions(
            version, queue, description or line, input_schema, retry, digest, remember
        )
        setattr(fn, "__agent__", options)  # noqa: B010
        return fn

    return mark
