"""The scheduler's two loops: delayed entries and ticks come on time, once, whoever is away."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from tests.services.conftest import Fragile
from tests.storage.scheduled import back, current, history, make, runs_of
from tests.support import eventually, metric, new_run, prompt, row, submit

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Entry
from researchcopilot.core.schedules import Schedule
from researchcopilot.core.settings import RedisSettings, Settings
from researchcopilot.runtime.loop import Stop
from researchcopilot.scheduler import due as due_room
from researchcopilot.scheduler import ticks as ticks_room
from researchcopilot.scheduler.due import DueMover
from researchcopilot.scheduler.ticks import TickLoop
from researchcopilot.scheduler.wakes import listen
from researchcopilot.storage import schedules
from researchcopilot.storage.db import Database
from researchcopilot.storage.lock import Locks
from researchcopilot.storage.push import Pusher
from researchcopilot.storage.queue import SCHEDULES, Queue

pytestmark = pytest.mark.anyio
NEVER_S = 60.0  # a fallback that no test waits for


@asynccontextmanager
async def scheduling(
    db: Database, queue: Queue, locked_by: RedisSettings | None = None
) -> AsyncIterator[tuple[DueMover, TickLoop]]:
    """A scheduler in this process. It is asleep, and hears wake-ups, when this returns."""
    stop = Stop()
    locks, pusher = Locks(locked_by or queue.settings, db), Pusher(queue)
    due, ticks = DueMover(db, queue, stop), TickLoop(db, locks, pusher, stop)
    tasks = [asyncio.create_task(loop) for loop in
             (due.run(), ticks.run(), listen(queue, due, ticks, stop))]  # fmt: skip
    try:
        await eventually(lambda: not due.deaf)
        await eventually(lambda: ticks.beat.age < 5)
        yield due, ticks
    finally:
        stop()
        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        await pusher.close()
        await locks.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found by looking again: what comes in time was woken."""
    monkeypatch.setattr(due_room, "FALLBACK_S", NEVER_S)
    monkeypatch.setattr(ticks_room, "FALLBACK_S", NEVER_S)


# Delays


async def test_a_delayed_job_fires_once(db: Database, queue: Queue) -> None:
    """The seed's demonstration, with two schedulers: a second later, once, and nothing is left."""
    started = time.monotonic()
    async with scheduling(db, queue), scheduling(db, queue):
        [run_id] = await submit(db, queue, new_run(delay_s=1.0))
        assert (await queue.depths("runs")).delayed == 1

        async def arrived() -> bool:
            return (await queue.depths("runs")).waiting == 1

        await eventually(arrived)
        assert 1.0 <= time.monotonic() - started < 1.5
    with prompt_of(queue) as client:
        assert client.lrange("queue:runs", 0, -1) == [f"1.{run_id}"]
        assert client.zcard("queue:runs:delayed") == 0


def prompt_of(queue: Queue) -> Any:
    import redis

    return redis.Redis.from_url(queue.settings.url, decode_responses=True)


async def waiting(queue: Queue, name: str = "runs") -> int:
    return (await queue.depths(name)).waiting


async def test_an_earlier_entry_wakes_the_sleeper(
    db: Database, queue: Queue, patient: None
) -> None:
    """Protects: who sleeps for a minute, until a later entry is due, moves an earlier one in
    time; also when a worker has put it back (later)."""
    async with scheduling(db, queue) as (due, _):
        await queue.delay("runs", [(Entry(1, new_id()), 50.0)])
        await eventually(lambda: 0.5 < due._look_at.get("runs", 0.0) - time.monotonic() < 60)
        started = time.monotonic()
        await queue.delay("runs", [(Entry(1, new_id()), 0.2)])
        await eventually(lambda: waiting(queue), 5)
        assert 0.19 <= time.monotonic() - started < 1
        held = Entry(1, new_id())
        await queue.later("runs", new_id(), [(held, 0.2)])
        await eventually(lambda: twice(queue), 5)
        assert (await queue.depths("runs")).delayed == 1


async def twice(queue: Queue) -> bool:
    return await waiting(queue) == 2


async def test_a_later_entry_wakes_nobody(queue: Queue) -> None:
    """Protects: a million delayed runs are not a million wake-ups."""
    told: list[str] = []

    async def hear() -> None:
        async for what in queue.published("wake"):
            told.append(what or "listening")

    hearing = asyncio.create_task(hear())
    await eventually(lambda: told)
    await queue.delay("runs", [(Entry(1, new_id()), 10.0)])
    for _ in range(5):
        await queue.delay("runs", [(Entry(1, new_id()), 20.0)])
    await queue.wake("the end")
    await eventually(lambda: "the end" in told)
    assert [what for what in told if what != "listening"] == ["queue:runs", "the end"]
    hearing.cancel()
    await asyncio.wait((hearing,))


async def test_a_queue_that_nobody_knew_is_woken_for(
    db: Database, queue: Queue, patient: None
) -> None:
    """Protects: the first delayed run of a new queue does not wait until queues are read again."""
    async with scheduling(db, queue):
        await queue.delay("brand-new", [(Entry(1, new_id()), 0.1)])
        await eventually(lambda: waiting(queue, "brand-new"), 3)


async def test_a_lost_wake_up_costs_a_pause(db: Database, queue: Queue) -> None:
    """Protects: an entry that nobody told of (its message was lost) is found by looking again."""
    await submit(db, queue, new_run())  # so that the queue is known
    async with scheduling(db, queue) as (due, _):
        await eventually(lambda: due._look_at.get("runs", 0.0) - time.monotonic() > 0.5)
        started = time.monotonic()
        with prompt_of(queue) as client:
            client.zadd("queue:runs:delayed", {f"1.{new_id()}": 1.0})
        await eventually(lambda: twice(queue), 5)
        assert time.monotonic() - started < 2 * due_room.FALLBACK_S


async def test_what_is_late_is_counted(db: Database, queue: Queue) -> None:
    """Protects: each entry's lateness, and that a full batch is followed by the next at once."""
    with prompt_of(queue) as client:
        late = {f"1.{new_id()}": client.time()[0] - 40.0 for _ in range(700)}
        client.zadd("queue:late:delayed", {**late, f"1.{new_id()}": client.time()[0] + 30.0})
    before = metric("researchcopilot_delay_lateness_seconds_count")
    over_thirty = metric("researchcopilot_delay_lateness_seconds_bucket", le="30.0")
    due = DueMover(db, queue, Stop())
    await due._move("late")
    assert (await queue.depths("late")).delayed == 201
    assert due._look_at["late"] <= time.monotonic()
    await due._move("late")
    assert (await queue.depths("late")).delayed == 1
    assert due._look_at["late"] > time.monotonic()
    assert metric("researchcopilot_delay_lateness_seconds_count") - before == 700
    assert metric("researchcopilot_delay_lateness_seconds_bucket", le="30.0") == over_thirty


async def test_an_entry_keeps_the_earlier_of_its_times(queue: Queue) -> None:
    """Protects: the janitor, which adds what is due soon once more, makes nothing late."""
    entry = Entry(1, new_id())
    with prompt_of(queue) as client:
        for wait in (10.0, 20.0, 5.0, 30.0):
            await queue.delay("runs", [(entry, wait)])
        [(_, score)] = client.zrange("queue:runs:delayed", 0, -1, withscores=True)
        assert 4 < score - client.time()[0] < 6


async def test_redis_comes_back_and_is_heard_again(fragile: Fragile) -> None:
    """Protects: a restart of Redis ends neither loop, and wake-ups are heard afterwards."""
    db, queue = Database(fragile.settings.database), Queue(fragile.settings.redis)
    await db.open()
    try:
        await submit(db, queue, new_run())
        async with scheduling(db, queue) as (due, _):
            await asyncio.to_thread(fragile.valkey.restart)
            await eventually(lambda: not due.deaf, 10)
            await queue.delay("runs", [(Entry(1, new_id()), 0.1)])
            await eventually(lambda: twice(queue), 10)
    finally:
        await queue.close()
        await db.close()


# Ticks


async def soon(db: Database, seconds: float = 0.5, **fields: Any) -> Schedule:
    start = await schedules.database_time(db) + timedelta(seconds=seconds)
    return await make(db, starts_at=start, **fields)


async def fired(db: Database, schedule: Schedule, number: int = 1) -> bool:
    return len([o for _, o in await history(db, schedule) if o == "fired"]) >= number


async def lateness(db: Database) -> float:
    """Of the only tick."""
    [(late_s,)] = await db.rows(b"SELECT extract(epoch FROM fired_at - tick)::float8 FROM ticks")
    return float(late_s)


async def test_a_tick_is_fired_on_time_and_pushed(
    db: Database, queue: Queue, patient: None
) -> None:
    """Protects: the loop sleeps until the next tick; a schedule that is made meanwhile wakes it."""
    async with scheduling(db, queue):
        made = await soon(db)
        await queue.wake(SCHEDULES)
        await eventually(lambda: fired(db, made), 5)
        [(late_s,)] = await db.rows(
            b"SELECT extract(epoch FROM fired_at - tick)::float8 FROM ticks"
        )
        assert 0 <= late_s < 0.3
        [run] = await runs_of(db, made)
        await eventually(lambda: waiting(queue))
        with prompt_of(queue) as client:
            assert client.lrange("queue:runs", 0, -1) == [f"1.{run['run_id']}"]


async def test_a_tick_with_jitter_waits_in_the_delayed_set(db: Database, queue: Queue) -> None:
    made = await make(db, jitter_s=3600.0)
    await back(db, made, 3600)
    async with scheduling(db, queue):
        await eventually(lambda: fired(db, made))

        async def delayed() -> bool:
            return (await queue.depths("runs")).delayed == 1

        await eventually(delayed)


async def test_ticks_are_fired_while_redis_is_away(db: Database, queue: Queue) -> None:
    """Protects: the lock is an optimisation: a Redis that is down stops no schedule, and the run
    is queued for when it is back."""
    nowhere = Queue(RedisSettings(url="redis://127.0.0.1:1/0"))
    made = await soon(db, 0.3)
    stop = Stop()
    locks, pusher = Locks(nowhere.settings, db), Pusher(nowhere, patience_s=0.1)
    ticks = TickLoop(db, locks, pusher, stop)
    running = asyncio.create_task(ticks.run())
    try:
        await eventually(lambda: fired(db, made))
        assert await lateness(db) < 0.8
        [run] = await runs_of(db, made)
        assert (await row(db, run["run_id"]))["status"] == "queued"
    finally:
        stop()
        ticks.alarm.ring()
        await asyncio.wait_for(running, 5)
        await pusher.close()
        await locks.close()
        await nowhere.close()


async def test_ticks_come_on_time_while_redis_hangs(fragile: Fragile) -> None:
    """Protects: a Redis that takes connections and answers nothing. A lock that is waited for makes
    every tick late, and of a schedule of seconds most are missed."""
    db, queue = Database(fragile.settings.database), Queue(fragile.settings.redis)
    await db.open()
    stop = Stop()
    locks, pusher = Locks(queue.settings, db), Pusher(queue, patience_s=0.1)
    ticks = TickLoop(db, locks, pusher, stop)
    os.kill(fragile.valkey.child.pid, signal.SIGSTOP)
    made = await soon(db, 0.3, interval_s=1.0, overlap="allow")
    running = asyncio.create_task(ticks.run())
    try:
        await eventually(lambda: fired(db, made, 4), 15)
        late = await db.rows(b"SELECT extract(epoch FROM fired_at - tick)::float8 FROM ticks")
        assert max(late_s for (late_s,) in late) < 1
        assert {outcome for _, outcome in await history(db, made)} == {"fired"}
    finally:
        os.kill(fragile.valkey.child.pid, signal.SIGCONT)
        stop()
        ticks.alarm.ring()
        await asyncio.wait_for(running, 15)
        await pusher.close()
        await locks.close()
        await queue.close()
        await db.close()


async def test_a_lock_that_nobody_gives_back_is_not_waited_for(
    db: Database, queue: Queue, settings: Settings
) -> None:
    """Protects: the holder died, or is stopped for ever: ticks are late by a moment and no more."""
    with prompt(settings) as client:
        client.set("lock:scheduler", "of a scheduler that stands still")
    async with scheduling(db, queue):
        made = await soon(db, 0.2)
        await queue.wake(SCHEDULES)
        await eventually(lambda: fired(db, made), 5)
    assert await lateness(db) < ticks_room.PATIENCE_S + 1


async def test_a_schedule_that_cannot_be_worked_out_stops_no_other(
    db: Database, queue: Queue
) -> None:
    """Protects: a zone that this machine does not know pauses its schedule, with the reason."""
    broken, good = await make(db, cron="0 8 * * *", timezone="Asia/Shanghai"), await make(db)
    await db.execute(b"UPDATE schedules SET timezone = 'Mars/Olympus' WHERE cron IS NOT NULL")
    for one in (broken, good):
        await back(db, one, 90_000)
    async with scheduling(db, queue):
        await eventually(lambda: fired(db, good))

        async def halted() -> bool:
            return (await current(db, broken)).paused_why is not None

        await eventually(halted)
    assert "Mars/Olympus" in str((await current(db, broken)).paused_why)


async def test_a_schedule_that_the_database_refuses_stops_no_other(
    db: Database, queue: Queue
) -> None:
    """Protects: one poisoned row of a batch is paused, all others of the batch are fired."""
    made = [await make(db) for _ in range(6)]
    await db.execute(
        b"CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        b" IF NEW.input = '\"poison\"' THEN RAISE EXCEPTION 'no such run is taken'; END IF;"
        b" RETURN NEW; END $$; CREATE TRIGGER poison BEFORE INSERT ON runs"
        b" FOR EACH ROW EXECUTE FUNCTION poison()"
    )
    poisoned = await schedules.change(
        db, 1, made[3].schedule_id, lambda one, now: replace(one, input="poison")
    )
    assert poisoned is not None
    for one in made:
        await back(db, one, 3600)
    async with scheduling(db, queue):
        for one in made[:3] + made[4:]:
            await eventually(partial(fired, db, one))
    assert "no such run is taken" in str((await current(db, poisoned)).paused_why)
    assert await runs_of(db, poisoned) == []
