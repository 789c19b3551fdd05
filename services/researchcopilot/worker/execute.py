"""Execute: one claim, from its agent's first step to an Outcome. As a pipeline: call, wait, judge.

The agent runs in a task, a thread, or a process of its own, so that one which swallows its
cancellation, or never returns, costs no more than itself: it is abandoned, counted, and its claim
ends all the same.
"""

import asyncio
import logging
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from researchcopilot.agents.policy import RetryPolicy
from researchcopilot.agents.registry import Agent
from researchcopilot.core.backoff import full_jitter
from researchcopilot.core.errors import TimedOut
from researchcopilot.core.models import Claim, Outcome
from researchcopilot.core.settings import JobSettings, WorkerSettings
from researchcopilot.runtime.log import bind
from researchcopilot.storage.db import Database
from researchcopilot.storage.lock import Locks
from researchcopilot.worker.calls import Call
from researchcopilot.worker.context import WorkerContext
from researchcopilot.worker.emitter import Emitter
from researchcopilot.worker.follow_up import with_follow_up
from researchcopilot.worker.hands import Ending, Hand
from researchcopilot.worker.isolated_call import IsolatedCall
from researchcopilot.worker.isolation import Isolation
from researchcopilot.worker.judge import Failure, judge
from researchcopilot.worker.lost import LostThreads
from researchcopilot.worker.metrics import ABANDONED
from researchcopilot.worker.pool import Work, followed
from researchcopilot.worker.threads import stack_of

log = logging.getLogger(__name__)
GRACE_S = 2.0  # an agent that was told to stop may take so long
START_S = 60.0  # a process that has not begun by then has had its time all the same


class Limit(NamedTuple):
    """How long the agent may take from when it begins, and whether the run's deadline says so."""

    seconds: float
    by_deadline: bool


@dataclass(frozen=True, slots=True)
class Executor:
    """What every execution of this worker needs."""

    settings: WorkerSettings
    jobs: JobSettings
    db: Database
    locks: Locks
    emitter: Emitter
    cache_dir: Path
    isolation: Isolation
    lost: LostThreads

    async def execute(self, hand: Hand, agent: Agent) -> Outcome | None:
        """How this claim ended; None if it is another worker's now."""
        claim = hand.claim
        bind(run_id=claim.run_id, claim_no=claim.claim_no, agent=claim.agent)
        works = followed()
        seconds = self._limit(hand).seconds
        context = WorkerContext(hand, self.db, self.locks, self.emitter, self.cache_dir, seconds)
        call = self._call(agent, context, seconds)
        call.future.add_done_callback(hand.wake)
        if not call.begun.done():
            begun = (call.begun, hand.over)
            await asyncio.wait(begun, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        limit = self._limit(hand)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(limit.seconds, hand.end, Ending.TIMED_OUT)
        await hand.over
        timer.cancel()
        if not call.future.done():
            await self._stop(call)
        if works:
            loop.call_later(GRACE_S, self._look_after, works)
        policy = agent.options.retry
        ended = call.ended(policy, self.settings.max_result_bytes)
        outcome = self._judge(hand, ended, policy, limit, call.stack)
        return with_follow_up(outcome, agent, claim, self.jobs)

    def _limit(self, hand: Hand) -> Limit:
        timeout = hand.claim.timeout_s or self.settings.run_timeout_s
        left = hand.time_left - (time.monotonic() - hand.claimed_at)
        return Limit(max(0.0, min(timeout, left)), left <= timeout)

    def _call(self, agent: Agent, context: WorkerContext, limit_s: float) -> Call | IsolatedCall:
        if self.isolation.wanted(context.run):
            return IsolatedCall(self.isolation, context, limit_s)
        return Call(agent, context, context.run.input)

    async def _stop(self, call: Call | IsolatedCall) -> None:
        if not await call.stop(GRACE_S):
            ABANDONED.inc()
            if call.thread is not None:
                self.lost.add(call.future, call.where())
            else:
                log.error(
                    "the agent goes on although it was told to stop; its run ends without it. "
                    "It swallows CancelledError."
                )

    def _look_after(self, works: set[Work]) -> None:
        """What a run that is over has left in the loop's threads."""
        for work in list(works):
            if not work.future.done() and not work.future.cancel():
                self.lost.add(asyncio.wrap_future(work.future), stack_of(work.thread))

    def _judge(
        self, hand: Hand, ended: str | Failure, policy: RetryPolicy, limit: Limit, stack: str
    ) -> Outcome | None:
        """The first word is the agent's: what it returned before it was stopped still counts."""
        ending = hand.ending
        failure = ended if isinstance(ended, Failure) else None
        if ending is Ending.LOST or (failure and failure.kind == "lost"):
            return None
        if failure is None:
            return _outcome(hand.claim, "succeeded", result=ended)
        if ending is Ending.CANCELLED or failure.kind == "cancelled":
            return _outcome(hand.claim, "cancelled")
        if ending is Ending.RELEASED:
            return _outcome(hand.claim, "release")
        if ending is Ending.TIMED_OUT:
            failure = _timed_out(hand, policy, limit, stack)
        return self._failed(hand.claim, policy, failure)

    def _failed(self, claim: Claim, policy: RetryPolicy, failure: Failure) -> Outcome:
        if failure.kind == "final":
            return _outcome(claim, "failed", error=failure.error)
        delay = failure.after
        if delay is None:
            base, cap = policy.base_s, policy.cap_s
            delay = full_jitter(
                claim.attempts,
                base=self.settings.retry_base_s if base is None else base,
                cap=self.settings.retry_cap_s if cap is None else cap,
                rand=random.random(),
            )
        return _outcome(claim, "retry", error=failure.error, delay_s=delay, reason=failure.reason)


def _timed_out(hand: Hand, policy: RetryPolicy, limit: Limit, stack: str) -> Failure:
    """Out of its own time: another attempt may be faster. At the run's deadline: no more."""
    if limit.by_deadline:
        error = TimedOut(
            f"The run's deadline came after {limit.seconds:.3g} s of this attempt. The trace shows "
            "where the agent was; submit it with a later deadline."
        )
        return Failure("final", {**judge(error, policy, stack).error, "type": "deadline"})
    whose = "the run's timeout_s" if hand.claim.timeout_s else "RC_RUN_TIMEOUT_SECONDS"
    error = TimedOut(
        f"The agent did not return within {limit.seconds:g} s ({whose}). The trace shows where it "
        "was. If that is slow and not stuck, submit with a longer timeout_s."
    )
    return judge(error, policy, stack)


def _outcome(claim: Claim, kind: str, **fields: Any) -> Outcome:
    return Outcome(claim.run_id, claim.claim_no, claim.worker_id, kind, **fields)
