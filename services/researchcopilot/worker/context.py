"""What an agent is given: a Context whose every write is fenced by its claim."""

import asyncio
import inspect
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from researchcopilot.core.errors import (
    BadResult,
    DuplicateStep,
    LostClaim,
    Permanent,
    Unavailable,
)
from researchcopilot.core.models import Claim, Message
from researchcopilot.core.text import clean_text, forbidden_in
from researchcopilot.storage import steps
from researchcopilot.storage.db import Database
from researchcopilot.storage.events import Event
from researchcopilot.storage.lock import Locks
from researchcopilot.storage.messages import last_messages
from researchcopilot.worker.emitter import Emitter
from researchcopilot.worker.hands import Ending, Hand
from researchcopilot.worker.metrics import EMITS_LOST
from researchcopilot.worker.result import EVENT_LIMIT, STEP_LIMIT, encode_result

log = logging.getLogger(__name__)
NAME_LIMIT = 200
MESSAGES = 200


class WorkerContext:
    """The Context of `agents.contract` for one claim."""

    def __init__(
        self,
        hand: Hand,
        db: Database,
        locks: Locks,
        emitter: Emitter,
        cache_dir: Path,
        limit_s: float,
    ) -> None:
        self._hand = hand
        self._db = db
        self._locks = locks
        self._emitter = emitter
        self._cache_dir = cache_dir
        # By this process' clock, which its agent compares it with; the limit knows the run's own.
        self._deadline = datetime.now(UTC) + timedelta(seconds=limit_s)
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
    def locks(self) -> Locks:
        return self._locks

    @property
    def cache_dir(self) -> Path:
        return self._cache_dir

    async def messages(self) -> list[Message]:
        if self.run.session_id is None:
            return []
        session = self.run.session_id
        found: list[Message] = await self._patiently(
            lambda: last_messages(self._db, self.run.workspace_id, session, MESSAGES)
        )
        return found

    async def emit(self, kind: str, data: dict[str, Any]) -> None:
        await self._hand.sure()
        try:
            text = encode_result(data, EVENT_LIMIT, what="event")
        except BadResult as error:
            EMITS_LOST.inc()
            log.warning("an event of the agent is dropped: %s", error)
            return
        self._hand.emitted += 1
        await self._emitter.emit(
            Event(
                self.run.run_id,
                self.run.claim_no,
                self._hand.emitted,
                clean_text(str(kind), 64),
                text,
            )
        )

    async def step(self, name: str, fn: Callable[[], Any]) -> Any:
        self._use(name)
        if self._kept is None:
            self._kept = await self._patiently(lambda: steps.read_steps(self._db, self.run.run_id))
        if name in self._kept:
            return self._kept[name]
        value = fn()
        if inspect.isawaitable(value):
            value = await value
        text = encode_result(value, STEP_LIMIT, what=f"value of the step {name!r}")
        await self._hand.sure()
        return await self._patiently(lambda: steps.record_step(self._db, self.run, name, text))

    def _use(self, name: Any) -> None:
        """A name is kept as it is or refused: one that was cut or cleaned would be another's."""
        if not isinstance(name, str) or not 0 < len(name) <= NAME_LIMIT or forbidden_in(name):
            raise Permanent(
                f"{name!r:.100} cannot be the name of a step: give 1 to {NAME_LIMIT} characters, "
                "without NUL and lone surrogates."
            )
        if name in self._used:
            raise DuplicateStep(
                f"The step {name!r} was used before in this claim. Give each step its own name, "
                "for example with a number."
            )
        self._used.add(name)

    async def _patiently(self, call: Callable[[], Any]) -> Any:
        """Repeat while Postgres is away: a server that restarts is no reason to fail a run."""
        while True:
            try:
                return await call()
            except Unavailable:
                if self._hand.ending is Ending.LOST:
                    raise LostClaim from None
            await asyncio.sleep(0.2)
