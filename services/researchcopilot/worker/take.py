"""Take and claim: entries from one queue into free slots, and a verdict for each of them.

Never more than there are free slots. An entry is `known` from the moment it is taken until it is
handed back; the worker's list is compared with that memory after each trouble and each minute, so
that an entry whose BLMOVE answer was lost counts as taken.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from researchcopilot.core.backoff import reconnect_delays
from researchcopilot.core.errors import Unavailable
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Claim, Verdict
from researchcopilot.runtime.batch import SIZES
from researchcopilot.runtime.loop import Beat, Stop
from researchcopilot.storage import moves
from researchcopilot.storage.db import Database, Locked
from researchcopilot.storage.queue import Queue, parse_entry, parse_probe
from researchcopilot.worker.handback import Handback
from researchcopilot.worker.metrics import FOUND, VERDICTS, WAITED
from researchcopilot.worker.slots import Slots

log = logging.getLogger(__name__)
COMPARE_S = 60.0
REFUSED_S = 30.0


@dataclass(frozen=True, slots=True)
class Taken:
    """A claim with the entry that brought it, the monotonic time at which its lease ends, and the
    seconds from the claim to the run's deadline."""

    claim: Claim
    entry: str
    lease_until: float
    time_left: float


class Taker:
    """The loop of one queue. `start` is called with each claim; it must not wait."""

    def __init__(
        self,
        queue: str,
        slots: Slots,
        *,
        db: Database,
        redis: Queue,
        handback: Handback,
        worker_id: str,
        lease_s: float,
        stop: Stop,
        start: Callable[[Taken, Slots], None],
    ) -> None:
        self.queue = queue
        self.slots = slots
        self.beat = Beat()
        self._db = db
        self._redis = redis
        self._handback = handback
        self._worker_id = worker_id
        self._lease_s = lease_s
        self._stop = stop
        self._start = start
        self._compared = -math.inf
        self._delays = reconnect_delays()
        self._more = False

    async def run(self) -> None:
        """Until asked to stop; what was taken and not claimed goes back to the head."""
        while not self._stop.is_set:
            if not await self._slot_or_stop():
                continue
            try:
                entries = await self._take()
                self.beat.mark()
                if entries:
                    await self._receive(entries)
                self._delays = reconnect_delays()
            except Unavailable as error:
                log.warning("queue %s: %s", self.queue, error)
                # A server that is away is seen, not slept through: a restart of us cannot help.
                self.beat.mark()
                await self._trouble(next(self._delays))
            except Exception:
                log.exception("queue %s: taking failed; it goes on in a moment", self.queue)
                await self._trouble(1.0)

    async def _trouble(self, pause_s: float) -> None:
        self._compared = -math.inf
        await self._stop.wait(pause_s)

    async def _slot_or_stop(self) -> bool:
        """True when a slot is free. Full hands are no reason to call this loop stuck."""
        try:
            await asyncio.wait_for(self.slots.one_free(), 1.0)
        except TimeoutError:
            self.beat.mark()
            return False
        return True

    async def _take(self) -> list[str]:
        free = self.slots.free
        if time.monotonic() - self._compared > COMPARE_S:
            found = await self._unknown_in_hands()
            if len(found) <= free:
                self._compared = time.monotonic()
            if found:
                return found[:free]
        entries = await self._redis.take(self.queue, self._worker_id, free) if self._more else []
        if not entries:
            first = await self._redis.wait(self.queue, self._worker_id)
            entries = [] if first is None else [first]
            if entries and free > 1:
                entries += await self._redis.take(self.queue, self._worker_id, free - 1)
        self._more = len(entries) > 1
        return entries

    async def _unknown_in_hands(self) -> list[str]:
        held = await self._redis.in_hands(self.queue, self._worker_id)
        found = [entry for entry in held if (self.queue, entry) not in self._handback.known]
        if found:
            FOUND.inc(len(found))
            log.info("queue %s: %d entries in this worker's list were unknown to it",
                     self.queue, len(found))  # fmt: skip
        return found

    async def _receive(self, entries: Sequence[str]) -> None:
        by_run: dict[str, str] = {}
        probes: list[str] = []
        for text in entries:
            self._handback.known.add((self.queue, text))
            entry = parse_entry(text)
            if entry is not None and entry.run_id not in by_run:
                by_run[entry.run_id] = text
            elif parse_probe(text) is not None:
                probes.append(text)
            else:
                self._handback.give("drop", self.queue, text)
        if self._stop.is_set:
            self._give_back([*by_run.values(), *probes])
            return
        if by_run:
            await self._claim(by_run)
        # Not before the claim: what was taken with a probe, and not claimed yet, would look lost.
        for probe in probes:
            await self._probed(probe)

    def _give_back(self, entries: Iterable[str]) -> None:
        for entry in entries:
            self._handback.give("head", self.queue, entry, since=time.monotonic())

    async def _probed(self, probe: str) -> None:
        """One that cannot be told of goes back to the head: as long as it counts as under way no
        other is sent, and lost pushes would stay lost for so long."""
        try:
            await self._redis.probed(self.queue, self._worker_id, probe)
        except Unavailable as error:
            log.warning("a probe goes back to the head: %s", error)
            self._give_back([probe])
        except Exception as error:
            log.warning("a probe is dropped: %s", error)
            self._handback.give("drop", self.queue, probe)
        else:
            self._handback.known.discard((self.queue, probe))

    async def _claim(self, by_run: Mapping[str, str]) -> None:
        """Runs start in the order of their entries. A group that Postgres refuses is halved, until
        the one that it refuses stands alone; that waits, and is seen in the log."""
        sent = time.monotonic()
        SIZES.labels("claim").observe(len(by_run))
        try:
            verdicts = await self._claim_patiently(list(by_run))
        except Exception:
            await self._refused(by_run)
            return
        if verdicts is None:
            self._give_back(by_run.values())
            return
        found = {verdict.run_id: verdict for verdict in verdicts}
        for run_id, entry in by_run.items():
            self._follow(found[run_id], entry, sent + self._lease_s)

    async def _refused(self, by_run: Mapping[str, str]) -> None:
        if len(by_run) > 1:
            members = list(by_run.items())
            middle = len(members) // 2
            await self._claim(dict(members[:middle]))
            await self._claim(dict(members[middle:]))
            return
        for run_id, entry in by_run.items():
            log.exception("this run cannot be claimed; it is tried again in %g s", REFUSED_S,
                          extra={"run_id": run_id})  # fmt: skip
            self._handback.give("later", self.queue, entry, REFUSED_S)
        await self._stop.wait(1.0)

    async def _claim_patiently(self, run_ids: list[str]) -> list[Verdict] | None:
        """None if asked to stop while Postgres is away. The same claim id each time."""
        claim_id = new_id()
        for delay in reconnect_delays():
            try:
                return await moves.claim(
                    self._db, run_ids, worker_id=self._worker_id, claim_id=claim_id,
                    lease_s=self._lease_s,
                )  # fmt: skip
            except Locked:
                raise  # of one of them, maybe for long: the others are claimed without it
            except Unavailable as error:
                log.warning("queue %s: %d entries wait for their claim: %s",
                            self.queue, len(run_ids), error)  # fmt: skip
                self.beat.mark()
            if await self._stop.wait(delay):
                return None
        return None

    def _follow(self, verdict: Verdict, entry: str, lease_until: float) -> None:
        VERDICTS.labels(self.queue, verdict.verdict).inc()
        if verdict.claim is not None:
            # claim_no counts every claim, attempts only those that were not refunded.
            if verdict.verdict == "claimed" and verdict.claim.claim_no == verdict.claim.attempts:
                WAITED.labels(self.queue).observe(verdict.wait_s)
            self._start(Taken(verdict.claim, entry, lease_until, _time_left(verdict)), self.slots)
        elif verdict.verdict == "later":
            self._handback.give("later", self.queue, entry, verdict.wait_s)
        else:
            self._handback.give("drop", self.queue, entry)


def _time_left(verdict: Verdict) -> float:
    """Seconds from the claim to the run's deadline, by the database's clock."""
    claim = verdict.claim
    assert claim is not None
    return (claim.deadline - claim.ready_at).total_seconds() - verdict.wait_s
