"""Cancellations, as they are published: a run in hand ends at once, and not at its next renewal.

Only a shortcut: what is said while Redis is away, or nobody listens yet, is told by the renewal.
"""

import asyncio
import logging
import time
from contextlib import aclosing

from researchcopilot.core.backoff import reconnect_delays
from researchcopilot.core.errors import Unavailable
from researchcopilot.storage.queue import Queue
from researchcopilot.worker.hands import Ending, Hand, Hands
from researchcopilot.worker.metrics import TOLD

log = logging.getLogger(__name__)
KEPT_S = 30.0
KEPT = 1000


class Told:
    """`run` listens until it is cancelled."""

    def __init__(self, redis: Queue, worker_id: str, hands: Hands) -> None:
        self._redis = redis
        self._worker_id = worker_id
        self._hands = hands
        self._early: dict[str, float] = {}

    async def run(self) -> None:
        delays = reconnect_delays()
        while True:
            try:
                async with aclosing(self._redis.told(self._worker_id)) as told:
                    async for run_id in told:
                        delays = reconnect_delays()
                        if run_id is not None:
                            self._heard(run_id)
            except Unavailable as error:
                log.info("cancellations are told by the renewal for now: %s", error)
            await asyncio.sleep(next(delays))

    def starts(self, hand: Hand) -> None:
        """A cancellation can be here before the answer of the claim that it is for."""
        if self._early.pop(hand.claim.run_id, 0.0) > time.monotonic() - KEPT_S:
            self._end(hand)

    def _heard(self, run_id: str) -> None:
        hands = [hand for hand in self._hands.all() if hand.claim.run_id == run_id]
        for hand in hands:
            self._end(hand)
        if not hands:
            self._early[run_id] = time.monotonic()
            if len(self._early) > KEPT:
                del self._early[next(iter(self._early))]

    @staticmethod
    def _end(hand: Hand) -> None:
        if hand.ending is None:
            TOLD.labels("push").inc()
            log.info("asked to stop", extra={"run_id": hand.claim.run_id})
        hand.end(Ending.CANCELLED)
