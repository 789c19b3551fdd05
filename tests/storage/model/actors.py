"""The processes of a model test, made of the product's own parts: what accepts, what works, what
mends. Each does one step at a time and then waits for what it has started; its wires may be cut
anywhere on the way, and a crash takes its memory with it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.storage.model.wire import Crash, CutDatabase, CutQueue, CutRenewer, Judge, Wire

from researchcopilot.core.errors import ResearchCopilotError, Unavailable
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Outcome, Replayed, Submission, Submitted, WorkerInfo
from researchcopilot.core.settings import DatabaseSettings, RecoverySettings, RedisSettings
from researchcopilot.janitor.deadlines import expire
from researchcopilot.janitor.delayed import add_due_soon
from researchcopilot.janitor.entries import clear_dead
from researchcopilot.janitor.leases import Leases
from researchcopilot.janitor.parked import free_forgotten
from researchcopilot.janitor.probes import find_lost
from researchcopilot.janitor.rebuild import check_redis
from researchcopilot.runtime.loop import Stop, until_available
from researchcopilot.storage import dead_letters, moves, workers
from researchcopilot.storage.push import Pusher
from researchcopilot.storage.returning import Returning
from researchcopilot.storage.submit import Submitter
from researchcopilot.worker.finish import Finisher
from researchcopilot.worker.handback import Handback
from researchcopilot.worker.hands import Hand
from researchcopilot.worker.slots import Slots
from researchcopilot.worker.take import Taken, Taker

QUEUES = ("runs", "system")
# Janitors sweep often, but here time jumps: whoever was away for less than two sweeps was not away.
RECOVERY = RecoverySettings(lease_s=30.0, sweep_s=500.0, probe_slack_s=5.0, spread_s=0.0)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the servers are, and connections that other processes have left."""

    database: DatabaseSettings
    redis: RedisSettings
    spare: list[Any] = field(default_factory=list)


class Process:
    def __init__(self, place: Place, judge: Judge) -> None:
        self.wire = Wire(judge)
        self.db = CutDatabase(place.database, self.wire, place.spare)
        self.redis = CutQueue(place.redis, self.wire)

    async def live(self, work: Callable[[], Awaitable[None]]) -> None:
        """A step, to its end or to the end of the process."""
        try:
            with suppress(Unavailable):  # whoever asked was told so, and may ask again
                await work()
            await self.settle()
        except Crash:
            pass
        if self.wire.dead:
            await self.end()

    async def settle(self) -> None:
        """Wait for what was started in the background."""

    async def end(self) -> None:
        """The process is gone, and all that it was about to do."""
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.redis.close()


class Api(Process):
    """Accepts, cancels, replays, discards."""

    def __init__(self, place: Place, judge: Judge) -> None:
        super().__init__(place, judge)
        self._submitter = Submitter(self.db, self.redis)

    async def settle(self) -> None:
        await self._submitter.close()

    async def submit(
        self, submissions: Sequence[Submission]
    ) -> list[Submitted | ResearchCopilotError]:
        """All in one group; an answer for each."""
        answers = await asyncio.gather(
            *(self._submitter(one) for one in submissions), return_exceptions=True
        )
        told: list[Submitted | ResearchCopilotError] = []
        for answer in answers:
            if not isinstance(answer, Submitted | ResearchCopilotError):
                raise answer
            told.append(answer)
        return told

    async def cancel(self, workspace_id: int, run_ids: Sequence[str]) -> None:
        _, unparked, asked = await moves.cancel(self.db, workspace_id, run_ids)
        self._submitter.pusher.push(unparked)
        self._submitter.pusher.tell(asked)

    async def replay(self, run_ids: Sequence[str], fresh: bool) -> list[Replayed]:
        pusher = self._submitter.pusher
        return await dead_letters.replay(self.db, pusher, 1, run_ids, fresh=fresh)

    async def discard(self, run_ids: Sequence[str]) -> None:
        await dead_letters.discard(self.db, 1, run_ids)


class Worker(Process):
    """Takes, claims, holds, renews, ends. `held`: the claims that it believes to be its own."""

    def __init__(self, place: Place, judge: Judge, slots: int) -> None:
        super().__init__(place, judge)
        self.worker_id = new_id()
        self.info = WorkerInfo(self.worker_id, dict.fromkeys(QUEUES, slots), (), "test", 1, "0")
        self.held: dict[tuple[str, int], tuple[Hand, Slots]] = {}
        self.ended: list[Outcome] = []
        self.renewer = CutRenewer(place.database, self.wire)
        self.handback = Handback(self.redis, self.worker_id)
        self.pusher = Pusher(self.redis)
        self._finisher = Finisher(self.db, self.worker_id, self.handback, self.pusher)
        self._stop = Stop()
        self._takers = {queue: self._taker(queue, slots) for queue in QUEUES}

    def _taker(self, queue: str, slots: int) -> Taker:
        return Taker(
            queue, Slots(queue, slots), db=self.db, redis=self.redis, handback=self.handback,
            worker_id=self.worker_id, lease_s=RECOVERY.lease_s, stop=self._stop, start=self._start,
        )  # fmt: skip

    def _start(self, taken: Taken, slots: Slots) -> None:
        over = asyncio.get_running_loop().create_future()
        hand = Hand(taken.claim, taken.entry, taken.lease_until, over)
        self.held[hand.key] = hand, slots
        slots.use()

    async def settle(self) -> None:
        await self.handback.close()
        await self.pusher.close()

    async def end(self) -> None:
        self.renewer.close()
        await super().end()

    async def register(self) -> None:
        """Nothing is taken before Postgres knows who takes it."""
        await until_available(self._register, self._stop, what="Postgres")
        await self.redis.beat(self.worker_id)

    async def _register(self) -> None:
        await workers.register(self.db, self.info)

    async def beat(self) -> None:
        self.renewer.ready()
        if not self.renewer.beat(self.worker_id):
            await self.register()
        await self.redis.beat(self.worker_id)

    def free(self, queue: str) -> int:
        return self._takers[queue].slots.free

    async def take(self, queue: str) -> None:
        """One round of the taker's loop, on a list that is not empty."""
        taker = self._takers[queue]
        try:
            await taker._receive(await taker._take())
        except Unavailable:
            self.compare(queue)

    def compare(self, queue: str) -> None:
        """The next take begins with a look at what stands in this worker's hands."""
        self._takers[queue]._compared = float("-inf")

    async def finish(self, outcomes: Sequence[Outcome]) -> None:
        await asyncio.gather(*(self._end(outcome) for outcome in outcomes))

    async def _end(self, outcome: Outcome) -> None:
        hand, _ = self.held[outcome.run_id, outcome.claim_no]
        self.ended.append(outcome)
        await self._finisher.finish(hand, outcome)
        self._forget(hand)

    def _forget(self, hand: Hand) -> None:
        _, slots = self.held.pop(hand.key)
        slots.give_back()

    async def finish_again(self, outcomes: Sequence[Outcome]) -> None:
        """As if the first answers had been lost."""
        _, pushes = await moves.finish(self.db, self.worker_id, outcomes)
        self.pusher.push(pushes)

    async def renew(self) -> None:
        self.renewer.ready()
        pairs = list(self.held)
        verdicts = self.renewer.renew(self.worker_id, pairs, RECOVERY.lease_s)
        for pair, verdict in verdicts.items():
            if verdict == "lost":
                hand, _ = self.held[pair]
                self._finisher.lost(hand)
                self._forget(hand)

    async def drain(self) -> None:
        """Everything goes back; then it says goodbye."""
        await self.finish([self.outcome(pair, "release") for pair in self.held])
        await self.settle()
        await workers.stopped(self.db, self.worker_id)
        await self.redis.leave(self.worker_id)

    def outcome(self, pair: tuple[str, int], kind: str, delay_s: float = 0.0) -> Outcome:
        error = {"type": "E", "message": "no"} if kind in ("retry", "failed") else None
        result = f'{{"answer": "{pair[0]} {pair[1]}"}}' if kind == "succeeded" else None
        return Outcome(*pair, self.worker_id, kind, result, error, delay_s)


class Janitor(Process):
    """The duties of the janitor, and the scheduler's share in the queue."""

    def duties(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "leases": self._leases,
            "entries": lambda: clear_dead(self.db, self.redis, RECOVERY),
            "deadlines": lambda: expire(self.db, self.redis),
            "probes": lambda: find_lost(self.db, self.redis, RECOVERY),
            "redis": lambda: check_redis(self.db, self.redis),
            "delayed": lambda: add_due_soon(self.db, self.redis),
            "parked": lambda: free_forgotten(self.db, self.redis),
            "due": self._due,
        }

    async def _leases(self) -> None:
        stop = Stop()
        returning = Returning(self.redis, stop, RECOVERY.spread_s)
        try:
            await Leases(self.db, self.redis, RECOVERY, returning).sweep()
        finally:
            stop()
            await returning.close()

    async def _due(self) -> None:
        for queue in QUEUES:
            await self.redis.due(queue)
