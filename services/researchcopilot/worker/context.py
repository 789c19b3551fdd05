"""What an agent is given: a Context whose every write is fenced by its claim."""

import asyncio
import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from researchcopilot.core.errors import DuplicateStep, LostClaim, Unavailable
from researchcopilot.core.models import Claim, Message
from researchcopilot.core.text import clean_json, clean_text
from researchcopilot.storage import steps
from researchcopilot.storage.db import Database
from researchcopilot.storage.events import Event
from researchcopilot.storage.messages import last_messages
from researchcopilot.worker.emitter import Emitter
from researchcopilot.worker.hands import Ending, Hand
from researchcopilot.worker.result import encode_result

STEP_LIMIT = 1_048_576
MESSAGES = 200


class WorkerContext:
    """The Context of `agents.contract` for one claim."""

    def __init__(
        self, hand: Hand, db: Database, emitter: Emitter, cache_dir: Path, limit_s: float
    ) -> None:
        self._hand = hand
        self._db = db
        self._emitter = emitter
        self._cache_dir = cache_dir
        self._deadline = min(datetime.now(UTC) + timedelta(seconds=limit_s), hand.claim.deadline)
        self._kept: dict[str, Any] | None = None
        self._used: set[str] = set()

    @property
    def run(self) -> Claim:
        return self._hand.claim

    @property
    def deadline(self) -> datetime:
        return self._deadline

    @property
    def cancelled(self) -> bool:
        return self._hand.ending is not None

    @property
    def idempotency_key(self) -> str:
        return self._hand.claim.run_id

    @property
    def db(self) -> Database:
        return self._db

    @property
    def cache_dir(self) -> Path:
        return self._cache_dir

    async def messages(self) -> list[Message]:
        if self.run.session_id is None:
            return []
        return await last_messages(self._db, self.run.workspace_id, self.run.session_id, MESSAGES)

    async def emit(self, kind: str, data: dict[str, Any]) -> None:
        await self._hand.sure()
        self._hand.emitted += 1
        await self._emitter.emit(
            Event(
                self.run.run_id,
                self.run.claim_no,
                self._hand.emitted,
                clean_text(kind, 64),
                clean_json(data),
            )
        )

    async def step(self, name: str, fn: Callable[[], Any]) -> Any:
        if name in self._used:
            raise DuplicateStep(
                f"The step {name!r} was used before in this claim. Give each step its own name, "
                "for example with a number."
            )
        self._used.add(name)
        if self._kept is None:
            self._kept = await self._patiently(lambda: steps.read_steps(self._db, self.run.run_id))
        if name in self._kept:
            return self._kept[name]
        value = fn()
        if inspect.isawaitable(value):
            value = await value
        text = encode_result(value, STEP_LIMIT)
        await self._hand.sure()
        return await self._patiently(
            lambda: steps.record_step(self._db, self.run, clean_text(name, 200), text)
        )

    async def _patiently(self, call: Callable[[], Any]) -> Any:
        """Repeat while Postgres is away: a server that restarts is no reason to fail a run."""
        while True:
            try:
                return await call()
            except Unavailable:
                if self._hand.ending is Ending.LOST:
                    raise LostClaim from None
            await asyncio.sleep(0.2)
