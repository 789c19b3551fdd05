"""The Context of an agent in a process of its own: what writes goes through the worker, over the
pipe, because the fence is there. Values of steps are made here, where the agent is."""

import asyncio
import inspect
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from researchcopilot.core import errors
from researchcopilot.core.errors import BadResult, ResearchCopilotError
from researchcopilot.core.models import Claim, Message
from researchcopilot.core.settings import DatabaseSettings, RedisSettings
from researchcopilot.storage.db import Database
from researchcopilot.storage.lock import Locks
from researchcopilot.worker.frames import Frames
from researchcopilot.worker.result import EVENT_LIMIT, STEP_LIMIT, encode_result

log = logging.getLogger(__name__)
_TIMES = ("deadline", "created_at", "ready_at")
CLOSE_S = 0.5


class LateDatabase(Database):
    """Opened when it is first used: most agents never do, and each would hold a connection."""

    _opening: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        if self._opening is None:
            self._opening = asyncio.create_task(self.open())
        await self._opening
        async with super().connection() as connection:
            yield connection

    async def close(self) -> None:
        if self._opening is not None:
            await super().close()


class ChildContext:
    """The Context of `agents.contract`, at the child's end of the pipe."""

    def __init__(
        self,
        frames: Frames,
        claim: Claim,
        database: DatabaseSettings,
        redis: RedisSettings,
        cache_dir: Path,
        limit_s: float,
    ) -> None:
        self._frames = frames
        self._claim = claim
        self._db = LateDatabase(database)
        self._locks = Locks(redis, self._db)
        self._cache_dir = cache_dir
        self._deadline = datetime.now(UTC) + timedelta(seconds=limit_s)
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.told_to_stop = False

    @property
    def run(self) -> Claim:
        return self._claim

    @property
    def deadline(self) -> datetime:
        return self._deadline

    @property
    def cancelled(self) -> bool:
        return self.told_to_stop

    @property
    def idempotency_key(self) -> str:
        return self._claim.run_id

    @property
    def db(self) -> Database:
        return self._db

    @property
    def locks(self) -> Locks:
        return self._locks

    @property
    def cache_dir(self) -> Path:
        return self._cache_dir

    async def messages(self) -> list[Message]:
        answer = await self._ask("messages")
        return [read_message(fields) for fields in answer["value"]]

    async def emit(self, kind: str, data: dict[str, Any]) -> None:
        try:
            text = encode_result(data, EVENT_LIMIT, what="event")
        except BadResult as error:
            log.warning("an event of the agent is dropped: %s", error)
            return
        await self._ask("emit", kind=str(kind), data=text)

    async def step(self, name: str, fn: Callable[[], Any]) -> Any:
        number = next(self._numbers)
        given: Any = name  # one that is no text is refused where all are; it must get there as JSON
        answer = await self._ask("step", number, name=given if isinstance(given, str) else "")
        if not answer.get("wanted"):
            return answer["value"]
        try:
            value = fn()
            if inspect.isawaitable(value):
                value = await value
            text = encode_result(value, STEP_LIMIT, what=f"value of the step {name!r}")
        except BaseException:
            self._frames.send(value=number, text=None)
            raise
        return (await self._ask("value", number, send={"value": number, "text": text}))["value"]

    async def close(self) -> None:
        for part in (self._locks, self._db):
            with suppress(TimeoutError):
                await asyncio.wait_for(part.close(), CLOSE_S)

    def answered(self, message: dict[str, Any]) -> None:
        """The worker has answered one of our questions."""
        future = self._answers.pop(message["answer"], None)
        if future is None or future.done():
            return
        if "error" in message:
            kind = getattr(errors, message["error"], None)
            ours = isinstance(kind, type) and issubclass(kind, ResearchCopilotError)
            words = message["message"] if ours else f"{message['error']}: {message['message']}"
            future.set_exception(kind(words) if ours else RuntimeError(words))  # type: ignore[misc]
        else:
            future.set_result(message)

    async def _ask(
        self, verb: str, number: int | None = None, *, send: Any = None, **fields: Any
    ) -> dict[str, Any]:
        number = next(self._numbers) if number is None else number
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        self._frames.send(**(send or {"ask": number, "verb": verb, **fields}))
        return await future


# Records as JSON


def write_claim(claim: Claim) -> dict[str, Any]:
    times = {key: getattr(claim, key).isoformat() for key in _TIMES}
    return {**asdict(claim), **times}


def read_claim(fields: dict[str, Any]) -> Claim:
    times = {key: datetime.fromisoformat(fields[key]) for key in _TIMES}
    return Claim(**{**fields, **times})


def write_message(message: Message) -> dict[str, Any]:
    return {**asdict(message), "created_at": message.created_at.isoformat()}


def read_message(fields: dict[str, Any]) -> Message:
    return Message(**{**fields, "created_at": datetime.fromisoformat(fields["created_at"])})
