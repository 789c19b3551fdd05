"""From signals to runs that are queued again: the one place where the operator moves anything.

Signals wait in one line, one of a kind, and go in groups: a lone one at once, five hundred in a few
calls. One that fails for want of a server goes again until it does not; what is lost with this
process is found by its next start, or by the leases. Nothing waits for the API server here: an
Event is told, and posted by others.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence

from researchcopilot.core.backoff import reconnect_delays
from researchcopilot.core.errors import Unavailable
from researchcopilot.operator.announce import Announcer
from researchcopilot.operator.context import Context
from researchcopilot.operator.metrics import DROPPED, FAILED, SIGNALS
from researchcopilot.operator.signals import REASONS, Signal
from researchcopilot.runtime.loop import ROUND_S, Stop, unless_stopped
from researchcopilot.storage import dead_hands
from researchcopilot.storage.moves import Gone, Moved
from researchcopilot.storage.pods import Said, dead_processes
from researchcopilot.storage.returning import Returning
from researchcopilot.storage.taking_back import RECOVERED, begins, take_back

log = logging.getLogger(__name__)
GROUP = 200
MOST = 20_000  # that wait at once


class Recovery:
    def __init__(self, context: Context, announcer: Announcer) -> None:
        self._db = context.db
        self._redis = context.redis
        self._settings = context.settings.recovery
        self._announcer = announcer
        self._returning = Returning(context.redis, context.stop, self._settings.spread_s)
        self._waiting: dict[tuple[object, ...], tuple[Signal, float]] = {}
        self._wake = asyncio.Event()
        begins(REASONS)
        for reason in REASONS:
            SIGNALS.labels(reason)

    def put(self, signal: Signal) -> None:
        """Does not wait. Too many: it is dropped, and found as a silent worker later."""
        if len(self._waiting) >= MOST:
            DROPPED.inc()
            return
        SIGNALS.labels(signal.reason).inc()
        self._waiting.setdefault(signal.key, (signal, time.monotonic()))
        self._wake.set()

    async def run(self, stop: Stop) -> None:
        delays = reconnect_delays()
        while not stop.is_set:
            await unless_stopped(self._wake.wait, stop, 0.0)
            self._wake.clear()
            while self._waiting and not stop.is_set:
                if await self._go():
                    delays = reconnect_delays()
                elif await stop.wait(next(delays)):
                    break
        await self._leave()

    async def _leave(self) -> None:
        """Asked to stop: what has come by now goes once more, if there is a server for it."""
        try:
            async with asyncio.timeout(ROUND_S):
                while self._waiting and await self._go():
                    pass
        except TimeoutError:
            log.warning("%d signals are left to the leases", len(self._waiting))
        await self._returning.close()

    async def _go(self) -> bool:
        """The oldest group. False: a server is away, it waits again."""
        group = dict(list(self._waiting.items())[:GROUP])
        for key in group:
            del self._waiting[key]
        try:
            await self._take_back(list(group.values()))
        except Unavailable as error:
            log.warning("%d signals wait for a server: %s", len(group), error)
            self._waiting = {**group, **self._waiting}
            return False
        except asyncio.CancelledError:
            self._waiting = {**group, **self._waiting}
            raise
        except Exception:
            # Not again and again: these are left to the leases, those behind them must go on.
            FAILED.labels("signals").inc()
            log.exception("%d signals are left to the leases", len(group))
        return True

    async def _take_back(self, group: Sequence[tuple[Signal, float]]) -> None:
        said = [Said(signal.pod_uid, signal.before, signal.sure) for signal, _ in group]
        dead = await dead_processes(self._db, said, lease_s=self._settings.lease_s)
        if not dead:
            return
        told = _Told(self._announcer, {one.worker_id: group[one.place] for one in dead})
        await take_back(
            self._db,
            self._redis,
            self._returning,
            max_losses=self._settings.max_losses,
            gone=told.gone(),
            told=told,
        )
        # Their hands last: the janitor would empty them, too, two leases later.
        hands = {process.worker_id: process.queues for process in dead}
        await dead_hands.clear(self._db, self._redis, list(hands.items()), told.run_ids)


class _Told:
    """Hears of what was taken back, and tells it further."""

    def __init__(self, announcer: Announcer, of_worker: Mapping[str, tuple[Signal, float]]) -> None:
        self._announcer = announcer
        self._of_worker = of_worker
        self.run_ids: set[str] = set()

    def gone(self) -> list[Gone]:
        return [
            Gone(worker_id, signal.reason, signal.cause)
            for worker_id, (signal, _) in self._of_worker.items()
        ]

    def __call__(self, moved: Moved) -> None:
        now = time.monotonic()
        for (run_id, status), worker_id in zip(moved.verdicts, moved.workers, strict=True):
            signal, since = self._of_worker[worker_id]
            self.run_ids.add(run_id)
            RECOVERED.labels(signal.reason).observe(now - since)
            self._announcer.tell(signal, status)
