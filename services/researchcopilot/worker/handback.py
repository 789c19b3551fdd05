"""Handing entries back: what has ended leaves the processing list, the rest goes where it belongs.

In groups, in the background. A Redis that is away is tried for a minute; what is given up then is
found when the worker compares its list with its memory, and judged anew by the claim.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from researchcopilot.core.errors import Busy, Unavailable
from researchcopilot.runtime.batch import Group, Limits
from researchcopilot.storage.queue import Queue, parse_entry

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Back:
    """One entry on its way: `ack` ended here, `drop` not ours, `later` delayed, `head` at once.

    `since` orders those that go to the head together: the oldest ends up in front.
    """

    kind: str
    queue: str
    entry: str
    wait_s: float = 0.0
    since: float = 0.0


class Handback:
    """`known` holds every entry that this worker has taken and not yet handed back."""

    def __init__(self, redis: Queue, worker_id: str) -> None:
        self._redis = redis
        self._worker_id = worker_id
        self._group: Group[Back, None] = Group(
            self._send,
            again=lambda error: isinstance(error, Unavailable),
            limits=Limits(max_waiting=100_000, patience_s=60.0),
            name="hand_back",
        )
        self.known: set[tuple[str, str]] = set()

    def give(
        self, kind: str, queue: str, entry: str, wait_s: float = 0.0, since: float = 0.0
    ) -> None:
        """Start to hand one entry back; does not wait."""
        try:
            handed = self._group.join(Back(kind, queue, entry, wait_s, since))
        except Busy as error:
            self._left(queue, entry, error)
        else:
            handed.add_done_callback(lambda future: self._left(queue, entry, future.exception()))

    async def close(self, limit_s: float = 3.0) -> None:
        """Wait for what is under way, at most so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._group.close(), limit_s)

    def _left(self, queue: str, entry: str, error: BaseException | None) -> None:
        if error is not None:
            log.warning("an entry stays in this worker's list for now: %s", error)
        self.known.discard((queue, entry))

    async def _send(self, backs: Sequence[Back]) -> list[None]:
        ordered = sorted(backs, key=lambda back: (back.kind, back.queue))
        for (kind, queue), members in groupby(ordered, key=lambda back: (back.kind, back.queue)):
            await self._verb(kind, queue, list(members))
        return [None] * len(backs)

    async def _verb(self, kind: str, queue: str, backs: list[Back]) -> None:
        entries = [back.entry for back in backs]
        if kind == "ack":
            await self._redis.ack(queue, self._worker_id, entries)
        elif kind == "drop":
            await self._redis.drop(queue, self._worker_id, entries)
        elif kind == "head":
            oldest_first = sorted(backs, key=lambda back: back.since)
            await self._redis.release(queue, self._worker_id, [back.entry for back in oldest_first])
        else:
            waits = [(parse_entry(b.entry), b.wait_s) for b in backs]
            await self._redis.later(
                queue, self._worker_id, [(entry, wait) for entry, wait in waits if entry]
            )
