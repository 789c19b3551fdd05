"""The contract between an agent and its worker.

    async def answer(ctx: Context, input: Any) -> Any: ...

A plain `def` is an agent too: it runs in a thread and is given a `SyncContext`. Whatever it
returns must be JSON. An agent is run at least once: everything that must not happen twice goes
through `ctx.step` or is sent with `ctx.idempotency_key`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from researchcopilot.core.models import Claim, Message
from researchcopilot.storage.db import Database

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
        async def call() -> Any:
            return await self.inner.step(name, lambda: asyncio.to_thread(fn))

        return self._wait(call())

    def _wait(self, call: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await call

        return asyncio.run_coroutine_threadsafe(wait(), self.loop).result()


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What an agent says of itself; see `agent`."""

    version: str = "1"
    queue: str = "runs"
    description: str = ""
    input_schema: dict[str, Any] | None = None


def agent(
    *,
    version: str = "1",
    queue: str = "runs",
    description: str = "",
    input_schema: dict[str, Any] | None = None,
) -> Callable[[F], F]:
    """Say more about an agent than its function does. Optional.

    `queue` is where its runs go if the request names none; `description` is the first line of
    the docstring unless given; `input_schema` is JSON Schema of the input.
    """

    def mark(fn: F) -> F:
        line = (fn.__doc__ or "").strip().partition("\n")[0]
        options = AgentOptions(version, queue, description or line, input_schema)
        setattr(fn, "__agent__", options)  # noqa: B010
        return fn

    return mark
