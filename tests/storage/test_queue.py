"""The verbs of the queue, one at a time, against the real server: each is one command or one
script, keeps the order, and may be sent twice."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.support import eventually, metric, prompt

from researchcopilot.core.errors import Unavailable
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Due, Entry
from researchcopilot.core.settings import Settings
from researchcopilot.storage.push import Pusher
from researchcopilot.storage.queue import Queue, parse_entry, parse_probe

pytestmark = pytest.mark.anyio
WORKER = new_id()


def entries(n: int) -> list[Entry]:
    return [Entry(1, new_id()) for _ in range(n)]


def texts(found: list[Entry]) -> list[str]:
    return [str(entry) for entry in found]


@pytest.fixture
def client(settings: Settings) -> Iterator[Any]:
    with prompt(settings) as client:
        yield client


# Names and entries


def test_entries_and_probes_are_read_strictly() -> None:
    run_id = new_id()
    assert parse_entry(f"12.{run_id}") == Entry(12, run_id)
    assert str(Entry(12, run_id)) == f"12.{run_id}"
    for text in ("", ".", f".{run_id}", f"0.{run_id}", f"01.{run_id}", f"-1.{run_id}",
                 f"1.{run_id.upper()}", f"1.{run_id}\n", f"1.{run_id} ", f"1.{run_id[:-1]}",
                 f"1,{run_id}", f"{2**40}.{run_id}", f"1.{run_id.replace('-', '0')}"):  # fmt: skip
        assert parse_entry(text) is None, text
    assert parse_probe("probe.1700000000000000") == 1_700_000_000_000_000
    for text in ("probe.", "probe.x", "probe.1.5", "probe.-1", "probe." + "9" * 17, f"1.{run_id}"):
        assert parse_probe(text) is None, text


async def test_every_key_stands_under_the_prefix(settings: Settings, client: Any) -> None:
    """`{rc}:` puts all of them into one slot of a cluster; two installations share a server."""
    queue = Queue(replace(settings.redis, prefix="{rc}:", done_kept=5))
    first, second, third = entries(3)
    await queue.push("runs", [first, second])
    await queue.delay("runs", [(third, 0.0)])
    await queue.due("runs")
    await queue.beat(WORKER)
    assert await queue.wait("runs", WORKER) == str(first)
    assert await queue.take("runs", WORKER, 5) == texts([second, third])
    await queue.later("runs", WORKER, [(third, 9.0)])
    await queue.release("runs", WORKER, [str(second)])
    await queue.ack("runs", WORKER, [str(first)])
    await queue.probe("runs", 1)
    await queue.probed("runs", WORKER, "probe.1")
    await queue.mark_epoch("e")
    names = client.keys("*")
    assert names and all(str(name).startswith("{rc}:") for name in names)
    assert (await queue.depths("runs")).done == 1
    await queue.close()


# Verbs


async def test_the_tail_keeps_the_order_and_the_head_is_taken_first(queue: Queue) -> None:
    first, second, third, fourth = entries(4)
    await queue.push("runs", [first, second])
    await queue.push_head("runs", [third, fourth])
    assert await queue.take("runs", WORKER, 10) == texts([third, fourth, first, second])
    for push in (queue.push, queue.push_head):
        await push("runs", [])


async def test_wait_brings_the_oldest_or_nothing_after_a_second(queue: Queue) -> None:
    [first, second] = entries(2)
    assert await queue.wait("empty", WORKER) is None
    await queue.push("runs", [first, second])
    assert await queue.wait("runs", WORKER) == str(first)
    assert await queue.in_hands("runs", WORKER) == [str(first)]


async def test_who_waits_is_woken_by_a_push(queue: Queue) -> None:
    [entry] = entries(1)
    waits = asyncio.create_task(queue.wait("runs", WORKER))
    await asyncio.wait((waits,), timeout=0.05)
    await queue.push("runs", [entry])
    assert await asyncio.wait_for(waits, 0.5) == str(entry)


async def test_two_takers_never_get_the_same_entry(queue: Queue) -> None:
    found = entries(300)
    await queue.push("runs", found)
    hands = [new_id() for _ in range(5)]

    async def take(worker_id: str) -> list[str]:
        mine: list[str] = []
        while batch := await queue.take("runs", worker_id, 7):
            mine += batch
        return mine

    taken = await asyncio.gather(*(take(worker_id) for worker_id in hands))
    assert sorted(text for mine in taken for text in mine) == sorted(texts(found))
    for worker_id, mine in zip(hands, taken, strict=True):
        assert await queue.in_hands("runs", worker_id) == mine


async def test_released_entries_are_taken_next_oldest_first(queue: Queue) -> None:
    first, second, third, fourth = entries(4)
    await queue.push("runs", [first, second, third, fourth])
    await queue.take("runs", WORKER, 3)
    await queue.release("runs", WORKER, texts([first, second, third]))
    assert await queue.in_hands("runs", WORKER) == []
    assert await queue.take("runs", WORKER, 9) == texts([first, second, third, fourth])


async def test_an_ack_takes_one_occurrence_and_is_safe_twice(
    settings: Settings, client: Any
) -> None:
    queue = Queue(replace(settings.redis, done_kept=2))
    a, b, c = texts(entries(3))
    client.rpush(f"queue:runs:processing:{WORKER}", a, a, b, c)
    await queue.ack("runs", WORKER, [a])
    assert await queue.in_hands("runs", WORKER) == [a, b, c]
    await queue.ack("runs", WORKER, [a, b, c])
    await queue.ack("runs", WORKER, [c])
    assert await queue.in_hands("runs", WORKER) == []
    assert client.lrange("queue:runs:done", 0, -1) == [c, c]
    await queue.drop("runs", WORKER, [b])
    assert client.llen("queue:runs:done") == 2
    await queue.close()


async def test_done_is_not_kept_unless_asked(queue: Queue, client: Any) -> None:
    await queue.ack("runs", WORKER, texts(entries(2)))
    assert client.exists("queue:runs:done") == 0


async def test_later_leaves_the_hands_and_is_due_after_its_wait(queue: Queue, client: Any) -> None:
    soon, late = entries(2)
    client.rpush(f"queue:runs:processing:{WORKER}", str(soon), str(late))
    await queue.later("runs", WORKER, [(soon, 1.0), (late, 60.0)])
    assert await queue.in_hands("runs", WORKER) == []
    assert not (await queue.due("runs")).late_s

    async def moved() -> bool:
        due = await queue.due("runs")
        assert due.next_s is not None
        return bool(due.late_s)

    await eventually(moved)
    assert client.lrange("queue:runs", 0, -1) == [str(soon)]
    assert 55 < ((await queue.due("runs")).next_s or 0) <= 60


async def test_what_is_due_comes_in_the_order_of_its_time_and_in_bounded_groups(
    queue: Queue, client: Any
) -> None:
    found = entries(5)
    now = client.time()[0]
    ages = (3, 1, 5, 2, 4)
    client.zadd("queue:runs:delayed",
                {str(e): now - age for e, age in zip(found, ages, strict=True)})  # fmt: skip
    due = await queue.due("runs", limit=3)
    assert (len(due.late_s), due.overdue, due.next_s) == (3, 2, 0.0)
    due = await queue.due("runs", limit=3)
    assert (len(due.late_s), due.overdue, due.next_s) == (2, 0, None)
    order = [e for _, e in sorted(zip(ages, found, strict=True), key=lambda p: -p[0])]
    assert client.lrange("queue:runs", 0, -1) == texts(order)


async def test_several_that_move_what_is_due_move_it_once(queue: Queue, client: Any) -> None:
    found = entries(400)
    client.zadd("queue:runs:delayed", dict.fromkeys(texts(found), client.time()[0] - 1))
    moved = await asyncio.gather(*(queue.due("runs", limit=60) for _ in range(12)))
    assert sum(len(due.late_s) for due in moved) == 400
    listed = client.lrange("queue:runs", 0, -1)
    assert len(listed) == 400 and set(listed) == set(texts(found))


async def test_one_probe_at_a_time_and_the_newest_that_was_taken_counts(
    queue: Queue, client: Any
) -> None:
    [entry] = entries(1)
    assert await queue.probe("runs", 5)
    assert not await queue.probe("runs", 6)
    await queue.probed("runs", WORKER, "probe.5")
    assert await queue.last_probed("runs") == 5
    await queue.probed("runs", WORKER, "probe.4")  # an old one that turns up late
    assert await queue.last_probed("runs") == 5
    client.delete("queue:runs")
    assert await queue.probe("runs", 7)
    await queue.push("runs", [entry])
    client.delete("queue:runs:probe")  # forgotten: behind an entry another one goes
    assert await queue.probe("runs", 8)
    client.delete("queue:runs:probe")  # and behind a probe it takes its place
    assert await queue.probe("runs", 9)
    assert client.lrange("queue:runs", 0, -1) == ["probe.7", str(entry), "probe.9"]


async def test_depths_count_the_hands_of_those_who_are_counted(queue: Queue, client: Any) -> None:
    other = new_id()
    await queue.push("runs", entries(5))
    await queue.delay("runs", [(entry, 60.0) for entry in entries(2)])
    await queue.take("runs", WORKER, 2)
    await queue.take("runs", other, 1)
    await queue.beat(WORKER)
    await queue.beat(other)
    depths = await queue.depths("runs")
    assert (depths.waiting, depths.processing, depths.delayed, depths.done) == (2, 3, 2, 0)
    await queue.leave(other)
    assert (await queue.depths("runs")).processing == 2
    assert await queue.hold_anything([("runs", WORKER), ("runs", new_id())]) == [True, False]


async def test_clear_leaves_the_hands(queue: Queue, client: Any) -> None:
    """What is in hands is its worker's business, which compares; all else is written anew."""
    await queue.push("runs", entries(3))
    await queue.delay("runs", [(entries(1)[0], 60.0)])
    await queue.take("runs", WORKER, 1)
    await queue.probe("runs", 1)
    await queue.clear(["runs", "other"])
    assert client.keys("*") == [f"queue:runs:processing:{WORKER}"]


# A server that goes away


async def test_scripts_are_loaded_again_when_the_server_has_forgotten_them(
    queue: Queue, client: Any
) -> None:
    await queue.push("runs", entries(1))
    client.script_flush()
    assert len(await queue.take("runs", WORKER, 1)) == 1


async def test_nobody_there_and_nobody_able_are_unavailable_a_wrong_type_is_a_fault(
    settings: Settings, queue: Queue, client: Any
) -> None:
    nobody = Queue(replace(settings.redis, url="redis://127.0.0.1:9/0"))
    for call in (nobody.ping(), nobody.wait("runs", WORKER), nobody.take("runs", WORKER, 1),
                 nobody.push("runs", entries(1)), nobody.depths("runs")):  # fmt: skip
        with pytest.raises(Unavailable, match="Redis does not answer"):
            await call
    await nobody.close()
    limit = client.config_get("maxmemory")["maxmemory"]
    client.config_set("maxmemory", "1")
    try:
        before = metric("researchcopilot_redis_refusals_total", why="oom")
        with pytest.raises(Unavailable, match=r"Redis refuses: .*maxmemory"):
            await queue.push("runs", entries(1))
        assert metric("researchcopilot_redis_refusals_total", why="oom") == before + 1
    finally:
        client.config_set("maxmemory", limit)
    client.set("queue:runs", "no list")
    with pytest.raises(Exception, match=r"^WRONGTYPE"):
        await queue.push("runs", entries(1))


async def test_a_connection_that_breaks_while_it_waits_is_unavailable_once(
    queue: Queue, client: Any
) -> None:
    [entry] = entries(1)
    waits = asyncio.create_task(queue.wait("runs", WORKER))
    await eventually(lambda: [c for c in client.client_list() if c["cmd"] == "blmove"])
    client.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(Unavailable):
        await waits
    await queue.push("other", [])
    client.rpush("queue:runs", str(entry))
    assert await queue.wait("runs", WORKER) == str(entry)


# Pushes in the background


async def test_pushes_keep_their_order_and_go_where_their_wait_says(
    queue: Queue, client: Any
) -> None:
    pusher = Pusher(queue)
    found = entries(30)
    later = entries(2)
    for start in range(0, 30, 3):
        pusher.push([Due("runs", entry) for entry in found[start : start + 3]])
    pusher.push([Due("runs", later[0], 50.0), Due("other", later[1], 0.0)])
    await pusher.close()
    assert client.lrange("queue:runs", 0, -1) == texts(found)
    assert client.zrange("queue:runs:delayed", 0, -1) == [str(later[0])]
    assert client.lrange("queue:other", 0, -1) == [str(later[1])]


async def test_pushes_are_given_up_after_their_patience_and_never_raise(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    nobody = Queue(replace(settings.redis, url="redis://127.0.0.1:9/0"))
    pusher = Pusher(nobody, patience_s=0.05)
    pusher.push([Due("runs", entry) for entry in entries(3)])
    await eventually(lambda: pusher.given_up == 3)
    assert "left to the janitor" in caplog.text
    await pusher.close()
    await nobody.close()
