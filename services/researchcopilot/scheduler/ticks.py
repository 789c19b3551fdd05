"""Ticks: fires the schedules that are due, in bounded batches, and sleeps until the next tick.

A round is under one token lock, so that several schedulers do not do the same work; the rows' own
locks and the primary key of ticks are what holds when that one fails. So nothing waits for it: if
Redis is away or hangs, or whoever has the lock has not fired what is due for PATIENCE_S, it goes
without.
"""

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import datetime

from prometheus_client import Counter, Gauge, Histogram

from researchcopilot.core.errors import LostLock, Unavailable
from researchcopilot.core.schedules import Plan, Schedule, plan
from researchcopilot.runtime.alarm import Alarm
from researchcopilot.runtime.loop import Beat, Stop
from researchcopilot.storage import schedules
from researchcopilot.storage.db import Database
from researchcopilot.storage.keeper import Held
from researchcopilot.storage.lock import Locks
from researchcopilot.storage.push import Pusher
from researchcopilot.storage.schedules import Fired

TICKS = Counter("researchcopilot_ticks_total", "Ticks of schedules, by what became of them",
                ["outcome"])  # fmt: skip
for _outcome in ("fired", "merged", "overlap", "missed"):  # from 0: else the first is not seen
    TICKS.labels(_outcome)
LATE = Histogram(
    "researchcopilot_tick_lateness_seconds",
    "How late a tick was fired",
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 300),
)
ROUNDS = Counter("researchcopilot_tick_rounds_total",
                 "Rounds of ticks: with the lock, without it, or left to who has it",
                 ["lock"])  # fmt: skip
HALTED = Counter("researchcopilot_schedules_halted_total",
                 "Schedules that were paused because they cannot be fired")  # fmt: skip
NEXT_TICK = Gauge("researchcopilot_next_tick_seconds",
                  "Until the next tick of any schedule, when it was last looked at")  # fmt: skip

log = logging.getLogger(__name__)
LOCK = "scheduler"
LOCK_S = 5.0
PATIENCE_S = 1.0
ANSWER_S = 0.3  # a Redis that takes longer is none: it is asked again after LOCK_S
FALLBACK_S = 1.0  # a schedule that was made or changed is seen after so long at most
BATCH = 250
AT_A_TIME_S = 0.005  # plans are made for so long before the event loop has its turn


class TickLoop:
    def __init__(self, db: Database, locks: Locks, pusher: Pusher, stop: Stop) -> None:
        self._db = db
        self._locks = locks
        self._pusher = pusher
        self._stop = stop
        self._unlocked_until = 0.0  # monotonic
        self.alarm = Alarm()
        self.beat = Beat()

    async def run(self) -> None:
        while not self._stop.is_set:
            try:
                pause = await self._round()
            except Unavailable as error:
                log.warning("ticks wait: %s", error)
                pause = FALLBACK_S
            except Exception:
                log.exception("firing ticks failed; it is tried again")
                pause = FALLBACK_S
            self.beat.mark()
            if pause > 0:
                await self.alarm.sleep(pause)

    async def _round(self) -> float:
        """Fire what is due; seconds until there is something to do."""
        wait = await schedules.next_wait(self._db)
        NEXT_TICK.set(float("inf") if wait is None else wait)
        if wait is None or wait > 0:
            return FALLBACK_S if wait is None else min(wait, FALLBACK_S)
        async with AsyncExitStack() as stack:
            held = None
            if -wait <= PATIENCE_S and time.monotonic() >= self._unlocked_until:
                try:
                    async with asyncio.timeout(ANSWER_S):
                        held = await stack.enter_async_context(self._locks.hold(LOCK, ttl_s=LOCK_S))
                except (Unavailable, TimeoutError) as error:
                    log.warning("ticks are fired without the lock: %s", str(error) or "Redis hangs")
                    self._unlocked_until = time.monotonic() + LOCK_S
                else:
                    if held is None:
                        ROUNDS.labels("busy").inc()
                        return random.uniform(0.05, 0.15)
            ROUNDS.labels("without" if held is None else "held").inc()
            return await self._fire_all(held)

    async def _fire_all(self, held: Held | None) -> float:
        while not self._stop.is_set:
            now, due = await schedules.due(self._db, BATCH)
            if now is None:
                break
            fired = await self._fire(await self._planned(due, now))
            self._note(fired)
            if not fired:  # somebody else has these rows in this moment
                return random.uniform(0.01, 0.05)
            if len(due) < BATCH:
                break
            if held is not None and held.is_lost:
                log.warning("%s; the next round takes it again", LostLock().message)
                break
        return 0.0

    async def _planned(self, due: Sequence[Schedule], now: datetime) -> list[Plan]:
        plans: list[Plan] = []
        began = time.monotonic()
        for schedule in due:
            if time.monotonic() - began > AT_A_TIME_S:
                await asyncio.sleep(0)
                began = time.monotonic()
            try:
                plans.append(plan(schedule, now))
            except Exception as error:
                await self._halt(schedule, f"its next tick cannot be worked out: {error!r}")
        return plans

    async def _fire(self, plans: Sequence[Plan]) -> list[Fired]:
        """All of them; one that the database refuses is paused, the others are fired."""
        if not plans:
            return []
        try:
            return await schedules.fire(self._db, plans)
        except Unavailable:
            raise
        except Exception as error:
            if len(plans) == 1:
                await self._halt(plans[0].schedule, f"it cannot be fired: {error!r}")
                return []
            middle = len(plans) // 2
            return [*await self._fire(plans[:middle]), *await self._fire(plans[middle:])]

    async def _halt(self, schedule: Schedule, why: str) -> None:
        if await schedules.halt(self._db, schedule, why[:500]):
            HALTED.inc()
            log.error("the schedule %r is paused: %s", schedule.name, why,
                      extra={"schedule_id": schedule.schedule_id})  # fmt: skip

    def _note(self, fired: Sequence[Fired]) -> None:
        self._pusher.push([one.push for one in fired if one.push is not None])
        for one in fired:
            TICKS.labels(one.outcome).inc()
            if one.outcome == "fired":
                LATE.observe(one.late_s)
            else:
                log.info("a tick was skipped: %s", one.outcome,
                         extra={"schedule_id": one.schedule_id, "tick": str(one.tick)})  # fmt: skip
