"""One worker process: registration, its loops, the runs in its hands, and the way out."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from researchcopilot.agents.registry import Agent
from researchcopilot.core.errors import ResearchCopilotError, Unavailable
from researchcopilot.core.models import Claim, Outcome, WorkerInfo
from researchcopilot.core.settings import Settings
from researchcopilot.runtime import duties
from researchcopilot.runtime.loop import Beat, Stop, every, until_available
from researchcopilot.storage import workers
from researchcopilot.storage.claims import waited_since_loss
from researchcopilot.storage.db import Database
from researchcopilot.storage.lock import Locks
from researchcopilot.storage.push import Pusher
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.renewal import Renewer
from researchcopilot.worker.emitter import Emitter
from researchcopilot.worker.execute import Executor
from researchcopilot.worker.finish import Finisher
from researchcopilot.worker.handback import Handback
from researchcopilot.worker.hands import Ending, Hand, Hands
from researchcopilot.worker.isolation import Isolation
from researchcopilot.worker.lost import EXIT_LOST, LostThreads
from researchcopilot.worker.metrics import RECOVERED
from researchcopilot.worker.pool import AgentPool
from researchcopilot.worker.renewal import RenewalThread
from researchcopilot.worker.slots import Slots
from researchcopilot.worker.stats import Stats
from researchcopilot.worker.take import Taken, Taker
from researchcopilot.worker.told import Told

log = logging.getLogger(__name__)
NO_AGENT_WAIT_S = 30.0
RELEASE_S = 5.0  # draining is over: agents have their grace, and Postgres has the rest of this
GOODBYE_S = 2.0


class Worker:
    """`run` returns when it was asked to stop and its hands are empty, or when insisted."""

    def __init__(
        self,
        settings: Settings,
        info: WorkerInfo,
        agents: Mapping[str, Agent],
        *,
        db: Database,
        redis: Queue,
        cache_dir: Path,
        stop: Stop,
    ) -> None:
        self.settings = settings
        self.info = info
        self.agents = agents
        self.db = db
        self.redis = redis
        self.stop = stop
        self.hands = Hands()
        self.pusher = Pusher(redis)
        self.handback = Handback(redis, info.worker_id)
        self.stats = Stats(db, info.worker_id)
        self.finisher = Finisher(
            db, info.worker_id, self.handback, self.pusher, count=self.stats.add
        )
        self.told = Told(redis, info.worker_id, self.hands)
        self.isolation = Isolation(settings)
        self.lost = LostThreads(settings.worker.max_lost_threads, self._give_up)
        self.locks = Locks(settings.redis, db)
        self.executor = self._executor(cache_dir)
        self.takers = [self._taker(queue, slots) for queue, slots in info.queues.items()]
        self.registered = False
        self.exit_code = 0
        self.redis_beat = Beat()
        self._tasks: set[asyncio.Task[None]] = set()
        self.renewal = RenewalThread(
            Renewer(settings.database, settings.recovery.lease_s),
            self.hands,
            info.worker_id,
            settings.recovery.lease_s,
            settings.worker.blocked_s,
            asyncio.get_running_loop(),
            self._forgotten,
        )

    def _executor(self, cache_dir: Path) -> Executor:
        return Executor(
            self.settings.worker,
            self.settings.jobs,
            self.db,
            self.locks,
            Emitter(self.redis),
            cache_dir,
            self.isolation,
            self.lost,
        )

    def _taker(self, queue: str, slots: int) -> Taker:
        return Taker(
            queue,
            Slots(queue, slots),
            db=self.db,
            redis=self.redis,
            handback=self.handback,
            worker_id=self.info.worker_id,
            lease_s=self.settings.recovery.lease_s,
            stop=self.stop,
            start=self._start,
        )

    async def run(self) -> None:
        if not await until_available(self._register, self.stop, what="Postgres"):
            return
        asyncio.get_running_loop().set_default_executor(AgentPool(self.lost.most))
        self.renewal.start()
        # Counted before it takes: what it holds would be missing in the depths. A Redis that is
        # away now is no reason to wait, since nothing can be taken from it either.
        with contextlib.suppress(Unavailable):
            await self._beat()
        listening = asyncio.create_task(self.told.run())
        await self.isolation.open()
        loops = [asyncio.create_task(taker.run()) for taker in self.takers]
        beat = asyncio.create_task(
            every(self.settings.recovery.lease_s / 3, self._beat, self.stop, name="beat")
        )
        duties.begins("aggregate_stats")
        stats = asyncio.create_task(
            every(
                self.settings.jobs.stats_s,
                self.stats.write,
                self.stop,
                name="aggregate_stats",
                done=duties.succeeded,
                failed=duties.failed,
            )
        )
        log.info("ready: %s", ", ".join(f"{q} ({n} slots)" for q, n in self.info.queues.items()))
        await self.stop.asked.wait()
        log.info("draining: %d runs in hand", len(self.hands))
        await asyncio.gather(beat, stats, *loops)
        await self._drain()
        listening.cancel()
        await self.isolation.close()
        await self._leave()

    # Registration

    async def _register(self) -> None:
        await workers.register(self.db, self.info)
        self.registered = True

    def _forgotten(self) -> None:
        """Our row was pruned while we were stopped: register again."""
        self._spawn(self._register_again())

    async def _register_again(self) -> None:
        await until_available(self._register, self.stop, what="Postgres")

    async def _beat(self) -> None:
        await self.redis.beat(self.info.worker_id)
        self.redis_beat.mark()

    # Runs

    def _start(self, taken: Taken, slots: Slots) -> None:
        over = asyncio.get_running_loop().create_future()
        hand = Hand(taken.claim, taken.entry, taken.lease_until, over, time_left=taken.time_left)
        self.hands.add(hand)
        slots.use()
        self.told.starts(hand)
        if taken.claim.losses:
            self._spawn(self._recovered(taken.claim))
        self._spawn(self._live(hand, slots))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _live(self, hand: Hand, slots: Slots) -> None:
        """One claim, from execution to its slot being free again."""
        try:
            outcome = await self._outcome(hand)
            if outcome is None:
                self.finisher.lost(hand)
            else:
                await self.finisher.finish(hand, outcome)
        except Exception:
            # Nothing is known to lead here. The lease runs out and the run is taken back.
            log.exception("a run was dropped by a fault of the worker")
            self.handback.give("drop", hand.claim.queue, hand.entry)
        finally:
            self.hands.remove(hand)
            hand.end(Ending.LOST)  # for an agent that goes on without its run
            slots.give_back()

    async def _recovered(self, claim: Claim) -> None:
        """Measure how long a run that was taken back has waited for us, beside its execution."""
        try:
            wait_s = await waited_since_loss(self.db, claim.run_id, claim.claim_no)
        except Unavailable as error:
            log.info("not measured, how long a run that was taken back has waited: %s", error)
            return
        if wait_s is not None:
            RECOVERED.labels(claim.queue).observe(wait_s)

    async def _outcome(self, hand: Hand) -> Outcome | None:
        claim = hand.claim
        agent = self.agents.get(claim.agent)
        if agent is None:
            log.error("no agent %r is installed here; the run is released", claim.agent)
            error = {"type": "no_agent", "message": self._without(claim)}
            return Outcome(claim.run_id, claim.claim_no, claim.worker_id, "release",
                           error=error, delay_s=NO_AGENT_WAIT_S)  # fmt: skip
        return await self.executor.execute(hand, agent)

    def _without(self, claim: Claim) -> str:
        return (
            f"The worker that took this run from the queue {claim.queue!r} has no agent "
            f"{claim.agent!r}; it has {', '.join(sorted(self.agents)) or 'none'}. The run waits "
            f"{NO_AGENT_WAIT_S:g} s for one that has it: install its package on the workers of "
            "that queue, or submit to a queue whose workers have it."
        )

    # The way out

    def _give_up(self) -> None:
        if self.stop.is_set:
            return  # it leaves already, and for another reason
        self.exit_code = EXIT_LOST
        log.critical(
            "too many threads are lost (RC_MAX_LOST_THREADS): this worker drains and exits with "
            "code %d, so that a new one takes its place", EXIT_LOST,
        )  # fmt: skip
        self.stop()

    async def _drain(self) -> None:
        """Let runs end for RC_DRAIN_SECONDS, or until told twice; then release the rest."""
        waiting = [
            asyncio.create_task(self.hands.emptied()),
            asyncio.create_task(self.stop.insisted.wait()),
        ]
        await asyncio.wait(
            waiting, timeout=self.settings.worker.drain_s, return_when=asyncio.FIRST_COMPLETED
        )
        for task in waiting:
            task.cancel()
        if len(self.hands):
            log.warning("%d runs are released to other workers", len(self.hands))
        # Newest first: each goes to the head, and the oldest must end up in front.
        for hand in sorted(self.hands.all(), key=lambda hand: hand.claimed_at, reverse=True):
            hand.end(Ending.RELEASED)
        try:
            await asyncio.wait_for(self.hands.emptied(), RELEASE_S)
        except TimeoutError:
            log.error("%d runs are left to their leases", len(self.hands))

    async def _leave(self) -> None:
        await self.handback.close()
        await self.pusher.close()
        self.renewal.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._say_goodbye(), GOODBYE_S)
        await self.locks.close()
        log.info("stopped with %d runs in hand", len(self.hands))

    async def _say_goodbye(self) -> None:
        try:
            await self.stats.write()
            await workers.stopped(self.db, self.info.worker_id)
            await self.redis.leave(self.info.worker_id)
        except ResearchCopilotError as error:
            log.warning("left without saying goodbye: %s", error)
