"""Finish: the end of a claim is committed in groups; then its slot is free and its entry goes.

Postgres that is away is waited for without end: the answer is known, and only the lease decides
whether it still counts. A member that Postgres refuses for itself is failed by a bare outcome,
since a run whose failure cannot be written would be running for ever.
"""

import logging
import time
from collections.abc import Callable, Sequence

from researchcopilot.core.errors import Unavailable
from researchcopilot.core.models import Claim, Finished, Outcome
from researchcopilot.core.states import TERMINAL
from researchcopilot.runtime.batch import Group, Limits
from researchcopilot.storage import moves
from researchcopilot.storage.db import Database, Locked
from researchcopilot.storage.push import Pusher
from researchcopilot.worker.handback import Handback
from researchcopilot.worker.hands import Hand
from researchcopilot.worker.metrics import ATTEMPTS, FINISHED, RAN, RETRIES

log = logging.getLogger(__name__)


class Finisher:
    """`count` is told of each claim that ended: what became of it, and its seconds."""

    def __init__(
        self,
        db: Database,
        worker_id: str,
        handback: Handback,
        pusher: Pusher,
        count: Callable[[Claim, str, float], None] = lambda claim, word, seconds: None,
    ) -> None:
        self._db = db
        self._worker_id = worker_id
        self._handback = handback
        self._pusher = pusher
        self._count = count
        self._group: Group[Outcome, Finished] = Group(
            self._send,
            again=lambda error: isinstance(error, Unavailable),
            apart=lambda error: isinstance(error, Locked),
            limits=Limits(patience_s=None),
            name="finish",
        )

    async def finish(self, hand: Hand, outcome: Outcome) -> None:
        """Commit how a claim ended, and hand its entry back. Returns when the slot is free."""
        try:
            size = len(outcome.result or "") + len(outcome.follow_up or "")
            finished = await self._group(outcome, size=size)
        except Exception as error:
            log.exception("Postgres refuses how this run ended; it is failed without its result")
            finished = await self._group(_bare(outcome, error))
        self._tell(hand, outcome, finished.verdict)
        self._hand_back(hand, outcome, finished.verdict)

    def lost(self, hand: Hand) -> None:
        """A claim that is another worker's now: what was done here is dropped, and counted."""
        FINISHED.labels(hand.claim.queue, hand.claim.agent, "stale").inc()
        log.warning(
            "another worker has this run now; what was done here is dropped",
            extra={"run_id": hand.claim.run_id, "claim_no": hand.claim.claim_no},
        )
        self._handback.give("drop", hand.claim.queue, hand.entry)

    async def _send(self, outcomes: Sequence[Outcome]) -> list[Finished]:
        finished, pushes = await moves.finish(self._db, self._worker_id, outcomes)
        self._pusher.push(pushes)
        return finished

    def _hand_back(self, hand: Hand, outcome: Outcome, verdict: str) -> None:
        queue, entry = hand.claim.queue, hand.entry
        # `already`: the first answer was lost, and with it where a retry or release has led. An
        # entry too many is dropped by the next claim, one too few would wait for a probe.
        again = verdict == "already" and outcome.kind in ("retry", "release")
        if verdict == "queued" or again:
            kind = "head" if outcome.kind == "release" and outcome.delay_s <= 0 else "later"
            self._handback.give(kind, queue, entry, outcome.delay_s, hand.claimed_at)
        else:
            self._handback.give("drop" if verdict == "stale" else "ack", queue, entry)

    def _tell(self, hand: Hand, outcome: Outcome, verdict: str) -> None:
        claim = hand.claim
        word = outcome.kind if verdict in ("queued", "already") else verdict
        seconds = time.monotonic() - hand.claimed_at
        FINISHED.labels(claim.queue, claim.agent, word).inc()
        if word == "retry":
            RETRIES.labels(claim.agent, outcome.reason).inc()
        elif word in TERMINAL:
            ATTEMPTS.labels(claim.agent).observe(claim.attempts)
        RAN.labels(claim.queue, claim.agent).observe(seconds)
        self._count(claim, word, seconds)
        level = logging.WARNING if word in ("failed", "stale") else logging.INFO
        if log.isEnabledFor(level):
            extra = {
                "run_id": claim.run_id,
                "claim_no": claim.claim_no,
                "agent": claim.agent,
                "seconds": round(seconds, 3),
            }
            if outcome.error:
                extra["error"] = f"{outcome.error['type']}: {outcome.error['message']}"
            log.log(level, "run %s", word, extra=extra)


def _bare(outcome: Outcome, error: Exception) -> Outcome:
    text = type(error).__name__
    return Outcome(
        outcome.run_id,
        outcome.claim_no,
        outcome.worker_id,
        "failed",
        error={
            "type": "finish_refused",
            "message": f"Postgres refused how this run ended ({text}). The worker's log has more.",
        },
    )
