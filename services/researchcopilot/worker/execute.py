"""Execute: one claim, from its agent's first step to an Outcome. As a pipeline: call, wait, judge.

The agent runs in a task (or thread) of its own, so that one which swallows its cancellation, or
never returns, costs no more than itself: it is abandoned, counted, and its claim ends all the
same.
"""

import asyncio
import logging
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from researchcopilot.agents.contract import SyncContext
from researchcopilot.agents.registry import Agent
from researchcopilot.core.backoff import full_jitter
from researchcopilot.core.errors import (
    AgentExited,
    LostClaim,
    Permanent,
    RetryLater,
    RunCancelled,
    TimedOut,
)
from researchcopilot.core.models import Claim, Outcome
from researchcopilot.core.settings import WorkerSettings
from researchcopilot.runtime.log import bind
from researchcopilot.storage.db import Database
from researchcopilot.worker.context import WorkerContext
from researchcopilot.worker.emitter import Emitter
from researchcopilot.worker.hands import Ending, Hand
from researchcopilot.worker.metrics import ABANDONED
from researchcopilot.worker.result import describe_error, encode_result
from researchcopilot.worker.threads import run_in_thread

log = logging.getLogger(__name__)
GRACE_S = 2.0  # an agent that was told to stop may take so long


@dataclass(frozen=True, slots=True)
class Executor:
    """What every execution of this worker needs."""

    settings: WorkerSettings
    db: Database
    emitter: Emitter
    cache_dir: Path

    async def execute(self, hand: Hand, agent: Agent) -> Outcome | None:
        """How this claim ended; None if it is another worker's now."""
        claim = hand.claim
        bind(run_id=claim.run_id, claim_no=claim.claim_no, agent=claim.agent)
        limit = claim.timeout_s or self.settings.run_timeout_s
        context = WorkerContext(hand, self.db, self.emitter, self.cache_dir, limit)
        call = self._call(agent, context, claim.input)
        call.add_done_callback(hand.wake)
        timer = asyncio.get_running_loop().call_later(limit, hand.end, Ending.TIMED_OUT)
        await hand.over
        timer.cancel()
        if not call.done():
            await self._stop(call)
        return self._judge(hand, call, limit)

    def _call(self, agent: Agent, context: WorkerContext, given: Any) -> asyncio.Future[Any]:
        if agent.blocking:
            sync = SyncContext(context, asyncio.get_running_loop())
            return run_in_thread(lambda: agent.fn(sync, given), agent.name)
        return asyncio.create_task(_guarded(agent, context, given))

    async def _stop(self, call: asyncio.Future[Any]) -> None:
        call.cancel()
        await asyncio.wait((call,), timeout=GRACE_S)
        if not call.done():
            ABANDONED.inc()
            log.error(
                "the agent goes on although it was told to stop; its run ends without it. "
                "It swallows CancelledError, or blocks."
            )

    def _judge(self, hand: Hand, call: asyncio.Future[Any], limit: float) -> Outcome | None:
        """The first word is the agent's: what it returned before it was stopped still counts."""
        error = _error_of(call)
        ending = hand.ending
        if ending is Ending.LOST or isinstance(error, LostClaim):
            return None
        if error is None:
            try:
                text = encode_result(call.result(), self.settings.max_result_bytes)
            except Permanent as refused:
                return _outcome(hand.claim, "failed", error=describe_error(refused))
            return _outcome(hand.claim, "succeeded", result=text)
        if ending is Ending.CANCELLED or isinstance(error, RunCancelled):
            return _outcome(hand.claim, "cancelled")
        if ending is Ending.RELEASED:
            return _outcome(hand.claim, "release")
        if ending is Ending.TIMED_OUT:
            error = TimedOut(f"The agent did not return within {limit:g} s.")
        return self._failure(hand.claim, error)

    def _failure(self, claim: Claim, error: BaseException) -> Outcome:
        described = describe_error(error)
        if isinstance(error, Permanent):
            return _outcome(claim, "failed", error=described)
        if isinstance(error, RetryLater):
            delay = min(max(error.after, 0.0), 30 * 86_400)
        else:
            delay = full_jitter(
                claim.attempts,
                base=self.settings.retry_base_s,
                cap=self.settings.retry_cap_s,
                rand=random.random(),
            )
        return _outcome(claim, "retry", error=described, delay_s=delay)


async def _guarded(agent: Agent, context: WorkerContext, given: Any) -> Any:
    # SystemExit would leave the task and end the event loop, and with it all other runs.
    try:
        return await agent.fn(context, given)
    except (SystemExit, KeyboardInterrupt) as error:
        raise AgentExited(f"The agent called {type(error).__name__}({error}).") from error


def _error_of(call: asyncio.Future[Any]) -> BaseException | None:
    if not call.done() or call.cancelled():
        return asyncio.CancelledError("the agent was cancelled")
    error = call.exception()
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return AgentExited(f"The agent called {type(error).__name__}({error}).")
    return error


def _outcome(claim: Claim, kind: str, **fields: Any) -> Outcome:
    return Outcome(claim.run_id, claim.claim_no, claim.worker_id, kind, **fields)
