"""A Redis that was wiped, replaced or restored is written anew from Postgres: nothing is lost, the
order is kept, and whatever happens in the middle, it ends whole."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.services.conftest import Fragile
from tests.support import (
    claim,
    empty,
    ended,
    eventually,
    metric,
    new_run,
    prompt,
    submit,
    working,
)

from researchcopilot.core.errors import Unavailable
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import WorkerInfo
from researchcopilot.core.settings import Settings
from researchcopilot.janitor.rebuild import check_redis
from researchcopilot.storage import moves, recovery, workers
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


async def test_a_restored_redis_keeps_nothing_of_workers_that_were_forgotten(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """An old file brings back lists of workers whose rows were pruned since: nobody else would ever
    look at them, and they would count as being processed for good. Those of the living stay."""
    living, forgotten = new_id(), new_id()
    await workers.register(db, WorkerInfo(living, {"runs": 1}, (), "host", 1, "0"))
    await queue.beat(living)
    with prompt(settings) as client:
        client.zadd("workers", {forgotten: 1.0, "no id at all": 1.0})
        for name in ("runs", "gone:processing:x", "system"):
            client.rpush(f"queue:{name}:processing:{forgotten}", f"1.{new_id()}")
        client.rpush("queue:runs:processing:no id at all", "1")
        client.rpush(f"queue:runs:processing:{living}", f"1.{new_id()}")
        await check_redis(db, queue)
        assert client.keys("queue:*:processing:*") == [f"queue:runs:processing:{living}"]
        assert client.zrange("workers", 0, -1) == [living]


def rebuilds() -> float:
    return metric("researchcopilot_redis_rebuilds_total")


def lists(settings: Settings, name: str = "runs") -> tuple[list[str], list[str]]:
    """(waiting, delayed) as run ids, in their order."""
    with prompt(settings) as client:
        waiting = client.lrange(f"queue:{name}", 0, -1)
        delayed = client.zrange(f"queue:{name}:delayed", 0, -1)
    return [text.partition(".")[2] for text in waiting], [t.partition(".")[2] for t in delayed]


async def some_runs(db: Database, queue: Queue) -> tuple[list[str], list[str], list[str]]:
    """(due in their order, delayed in theirs, those that belong in no list): each kind there is."""
    running, done = new_run(), new_run()
    parked = new_run(running.session_id)
    await submit(db, queue, running, parked, done)
    await claim(db, [running.run_id, parked.run_id], worker_id=new_id())
    await moves.cancel(db, 1, [done.run_id])
    due = await submit(db, queue, *(new_run() for _ in range(12)))
    due += await submit(db, queue, *(new_run() for _ in range(3)))
    waits = [new_run(delay_s=seconds) for seconds in (300, 30, 7000)]
    await submit(db, queue, *waits)
    delayed = [waits[1].run_id, waits[0].run_id, waits[2].run_id]
    return due, delayed, [running.run_id, parked.run_id, done.run_id]


async def test_after_a_flush_everything_stands_where_it_belongs_in_its_order(
    settings: Settings, db: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "PAGE", 4)
    due, delayed, _ = await some_runs(db, queue)
    other = new_run(queue="other")
    await submit(db, queue, other)
    await check_redis(db, queue)
    with prompt(settings) as client:
        client.flushall()
    before = rebuilds()
    await check_redis(db, queue)
    assert rebuilds() == before + 1
    assert lists(settings) == (due, delayed)
    assert lists(settings, "other") == ([other.run_id], [])
    with prompt(settings) as client:
        score = client.zscore("queue:runs:delayed", f"1.{delayed[0]}")
        assert 25 < score - client.time()[0] <= 31


async def test_a_redis_that_is_known_is_left_alone(
    settings: Settings, db: Database, queue: Queue
) -> None:
    await some_runs(db, queue)
    await check_redis(db, queue)
    before = rebuilds(), lists(settings)
    with prompt(settings) as client:
        client.rpush("queue:runs", "a mark")
        for _ in range(3):
            await check_redis(db, queue)
        assert client.rpop("queue:runs") == "a mark"
    assert (rebuilds(), lists(settings)) == before


async def test_a_redis_is_known_before_the_first_worker_comes(db: Database, queue: Queue) -> None:
    """Protects: where nothing is served and nothing waits there is nothing to delete, and Redis is
    not asked for what it refuses, over and over, until somebody starts a worker."""
    assert await recovery.queues(db) == []
    before = metric("researchcopilot_redis_refusals_total", why="other")
    await check_redis(db, queue)
    assert await recovery.is_known_redis(db, queue)
    assert metric("researchcopilot_redis_refusals_total", why="other") == before


async def test_what_stood_there_is_not_doubled(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """A first look at a Redis that has all its entries, and some that are nobody's."""
    due, delayed, _ = await some_runs(db, queue)
    with prompt(settings) as client:
        client.rpush("queue:runs", "garbage", f"1.{new_id()}")
    await check_redis(db, queue)
    assert lists(settings) == (due, delayed)


# A Redis that starts again


@pytest.fixture
async def far(fragile: Fragile, anyio_backend: str) -> AsyncIterator[tuple[Database, Queue]]:
    db, queue = Database(fragile.settings.database), Queue(fragile.settings.redis)
    await db.open()
    try:
        yield db, queue
    finally:
        fragile.start()
        await queue.close()
        await db.close()


async def checked(db: Database, queue: Queue) -> None:
    """The duty, in its second round if the first one met a connection that was broken."""
    try:
        await check_redis(db, queue)
    except Unavailable:
        await check_redis(db, queue)


async def test_after_a_restart_without_its_file(
    fragile: Fragile, far: tuple[Database, Queue]
) -> None:
    db, queue = far
    due, delayed, _ = await some_runs(db, queue)
    await check_redis(db, queue)
    fragile.valkey.kill()
    fragile.valkey.clear()
    fragile.valkey.start()
    assert lists(fragile.settings) == ([], [])
    await checked(db, queue)
    assert lists(fragile.settings) == (due, delayed)


async def test_after_a_restart_with_its_file(fragile: Fragile, far: tuple[Database, Queue]) -> None:
    """Nothing was lost, but nobody can know: it is written anew, and nothing stands there twice."""
    db, queue = far
    due, delayed, _ = await some_runs(db, queue)
    await check_redis(db, queue)
    fragile.valkey.restart()
    before = rebuilds()
    await checked(db, queue)
    assert rebuilds() == before + 1
    assert lists(fragile.settings) == (due, delayed)


async def test_after_a_restore_of_an_older_file(
    fragile: Fragile, far: tuple[Database, Queue]
) -> None:
    """It has the epoch key that we wrote, and entries of runs that have ended since."""
    db, queue = far
    old = await submit(db, queue, *(new_run() for _ in range(5)))
    await check_redis(db, queue)
    fragile.valkey.stop()
    kept = fragile.valkey.data.with_name("kept")
    shutil.copytree(fragile.valkey.data, kept)
    fragile.valkey.start()
    await checked(db, queue)
    await moves.cancel(db, 1, old)
    with prompt(fragile.settings) as client:
        client.delete("queue:runs")
    due, delayed, _ = await some_runs(db, queue)
    fragile.valkey.kill()
    restore(fragile, kept)
    assert lists(fragile.settings)[0] == old
    await checked(db, queue)
    assert lists(fragile.settings) == (due, delayed)


def restore(fragile: Fragile, kept: Any) -> None:
    """The files as they were, of the user that they belong to."""
    for found in sorted(kept.rglob("*")):
        if found.is_file():
            target = fragile.valkey.data / found.relative_to(kept)
            target.write_bytes(found.read_bytes())
    shutil.rmtree(kept)
    fragile.valkey.start()


# In the middle of it


async def test_two_janitors_at_once_write_it_once(
    settings: Settings, db: Database, queue: Queue
) -> None:
    due, delayed, _ = await some_runs(db, queue)
    answers = await asyncio.gather(*(recovery.rebuild(db, queue) for _ in range(4)))
    assert len([answer for answer in answers if answer is not None]) >= 1
    waiting, later = lists(settings)
    assert (sorted(set(waiting)), later) == (sorted(due), delayed)
    await recovery.rebuild(db, queue)
    assert lists(settings) == (due, delayed)


async def test_a_janitor_that_dies_in_the_middle_leaves_it_to_the_next(
    settings: Settings, db: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    due, delayed, _ = await some_runs(db, queue)
    with prompt(settings) as client:
        client.flushall()
    with monkeypatch.context() as patch:
        patch.setattr(recovery, "PAGE", 4)
        patch.setattr(recovery, "_push_page", dies_after(2))
        with pytest.raises(KeyboardInterrupt):
            await recovery.rebuild(db, queue)
    assert 0 < len(lists(settings)[0]) < len(due)
    assert not await recovery.is_known_redis(db, queue)
    await check_redis(db, queue)
    assert lists(settings) == (due, delayed)
    assert await recovery.is_known_redis(db, queue)


def dies_after(pages: int) -> Any:
    push, left = recovery._push_page, [pages]

    async def push_page(*arguments: Any) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        await push(*arguments)

    return push_page


def then_flushed(call: Callable[..., Awaitable[None]], settings: Settings) -> Any:
    async def called(*arguments: Any) -> None:
        await call(*arguments)
        with prompt(settings) as client:
            client.flushall()

    return called


@pytest.mark.parametrize("after", ["a page", "the mark"])
async def test_a_redis_that_changes_once_more_meanwhile_is_not_called_known(
    settings: Settings, db: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """Protects: it is looked at again. Without its mark it has no identity that could be kept, and
    that is no error."""
    due, delayed, _ = await some_runs(db, queue)
    place, name = {"a page": (recovery, "_push_page"), "the mark": (queue, "mark_epoch")}[after]
    with monkeypatch.context() as patch:
        patch.setattr(place, name, then_flushed(getattr(place, name), settings))
        assert await recovery.rebuild(db, queue) is None
    assert not await recovery.is_known_redis(db, queue)
    await check_redis(db, queue)
    assert lists(settings) == (due, delayed)


async def test_what_is_submitted_meanwhile_is_there_at_the_end(
    settings: Settings, db: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the lists are deleted, between the pages, and after the last of them was read."""
    due, _, _ = await some_runs(db, queue)
    monkeypatch.setattr(recovery, "PAGE", 4)
    late: list[str] = []
    push, clear = recovery._push_page, queue.clear

    async def push_late(*arguments: Any) -> None:
        late.extend(await submit(db, queue, new_run()))
        await push(*arguments)
        late.extend(await submit(db, queue, new_run()))

    async def clear_late(*arguments: Any) -> None:
        late.extend(await submit(db, queue, new_run()))
        await clear(*arguments)

    monkeypatch.setattr(recovery, "_push_page", push_late)
    monkeypatch.setattr(queue, "clear", clear_late)
    await recovery.rebuild(db, queue)
    assert len(late) > 4
    assert set(lists(settings)[0]) == {*due, *late}


async def test_a_flush_under_load_loses_no_run(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """Workers go on, the janitor looks each tenth of a second; each run ends, and ends once."""
    done = asyncio.Event()

    async def agent(ctx: Any, given: Any) -> None:
        await asyncio.sleep(0.01)

    async def janitor() -> None:
        while not done.is_set():
            await check_redis(db, queue)
            await asyncio.sleep(0.1)

    looking = asyncio.create_task(janitor())
    async with working(settings, db, queue, {"it": agent}, queues={"runs": 8}):
        ids = await submit(db, queue, *(new_run(agent="it") for _ in range(150)))
        for n in (20, 70, 120):
            await ended(db, ids[n], 20)
            with prompt(settings) as client:
                client.flushall()
        for run_id in ids:
            await ended(db, run_id, 20)
        await eventually(lambda: empty(queue))
    done.set()
    await looking
    assert await db.rows(b"SELECT status, count(*) FROM runs GROUP BY 1") == [("succeeded", 150)]
    assert await db.rows(b"SELECT count(*), max(claim_no) FROM claims") == [(150, 1)]
