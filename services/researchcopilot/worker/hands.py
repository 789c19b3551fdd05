"""What a worker has in its hands: one Hand for each claim that it executes.

Written by the event loop, read by the renewal thread: `pairs` takes a snapshot, and everything
that the thread finds out comes back through `call_soon_threadsafe`.
"""

import asyncio
import math
import time
from dataclasses import dataclass, field
from enum import Enum, auto

from researchcopilot.core.errors import LostClaim
from researchcopilot.core.models import Claim


class Ending(Enum):
    """Why a claim has to end before its agent does."""

    LOST = auto()  # another worker's now: drop everything
    CANCELLED = auto()  # somebody asked
    RELEASED = auto()  # this worker is draining
    TIMED_OUT = auto()


@dataclass(eq=False, slots=True)
class Hand:
    """A claim, the entry that brought it, and how sure we are that it is ours."""

    claim: Claim
    entry: str
    lease_until: float  # monotonic
    over: asyncio.Future[None]  # the agent has returned, or there is a reason to end without it
    claimed_at: float = field(default_factory=time.monotonic)
    time_left: float = math.inf  # seconds from the claim to the run's deadline
    emitted: int = 0
    ending: Ending | None = None
    _renewed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def key(self) -> tuple[str, int]:
        return self.claim.run_id, self.claim.claim_no

    def end(self, ending: Ending) -> None:
        """Ask for the end. The first reason stands, except that a lost claim is lost."""
        if self.ending is None or ending is Ending.LOST:
            self.ending = ending
        self.wake()
        self._renewed.set()

    def wake(self, _: object = None) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def renewed(self, lease_until: float) -> None:
        self.lease_until = lease_until
        self._renewed.set()

    async def sure(self) -> None:
        """Return while the lease is good; wait while it is in doubt. Raises LostClaim."""
        while self.ending is not Ending.LOST and time.monotonic() >= self.lease_until:
            self._renewed.clear()
            await self._renewed.wait()
        if self.ending is Ending.LOST:
            raise LostClaim


class Hands:
    """All hands of a worker, by (run_id, claim_no)."""

    def __init__(self) -> None:
        self._hands: dict[tuple[str, int], Hand] = {}
        self._emptied = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        return len(self._hands)

    def add(self, hand: Hand) -> None:
        self._hands[hand.key] = hand
        self._emptied.clear()

    def remove(self, hand: Hand) -> None:
        self._hands.pop(hand.key, None)
        if not self._hands:
            self._emptied.set()

    def get(self, key: tuple[str, int]) -> Hand | None:
        return self._hands.get(key)

    def all(self) -> list[Hand]:
        return list(self._hands.values())

    def pairs(self) -> list[tuple[str, int]]:
        """A snapshot, also from another thread: list() of a dict is atomic under the GIL, and a
        change in between is an error that is simply tried again."""
        while True:
            try:
                return list(self._hands)
            except RuntimeError:
                continue

    async def emptied(self) -> None:
        await self._emptied.wait()
