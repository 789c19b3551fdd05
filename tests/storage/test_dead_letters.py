"""Dead letters: grouped by what went wrong, and dealt with once: replayed into one new run, or
discarded, whoever clicks how often and at the same time as whom."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.storage.verbs import ERROR, cancel, claim, claimed, fail, finish, open_connections
from tests.support import new_run, row, submit

from researchcopilot.core.ids import new_id
from researchcopilot.storage import dead_letters, moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.dead_letters import Filter
from researchcopilot.storage.push import Pusher
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


async def replay(
    db: Database, *run_ids: str, fresh: bool = False, workspace_id: int = 1
) -> dict[str, tuple[str, str | None]]:
    pairs = [(run_id, new_id()) for run_id in run_ids]
    done, _ = await moves.replay(db, workspace_id, pairs, fresh=fresh)
    return {found.run_id: (found.verdict, found.new_run_id) for found in done}


async def failed(db: Database, queue: Queue, number: int = 1, **fields: Any) -> list[str]:
    ids = await submit(db, queue, *(new_run(**fields) for _ in range(number)))
    for run_id in ids:
        await fail(db, run_id)
    return ids


# Groups


async def test_one_kind_of_failure_is_one_group_whatever_its_numbers(
    db: Database, queue: Queue
) -> None:
    ids = await submit(db, queue, *(new_run() for _ in range(4)))
    for number, run_id in enumerate(ids[:3]):
        words = f"no customer {number} in {new_id()} at 0x7f{number}"
        await fail(db, run_id, {"type": "KeyError", "message": words})
    await fail(db, ids[3], {"type": "KeyError", "message": "the disk is full"})
    first, second = await dead_letters.groups(db, Filter(1), 10)
    assert (first.count, first.agent, first.error_type) == (3, "echo", "KeyError")
    assert first.message is not None and first.message.startswith("no customer 2 ")
    assert list(first.run_ids) == ids[2::-1]
    assert first.first_failed_at < first.last_failed_at
    assert (second.count, second.message) == (1, "the disk is full")
    assert await dead_letters.count(db, 1) == 4


async def test_a_sample_is_five_at_most(db: Database, queue: Queue) -> None:
    ids = await failed(db, queue, 7)
    [group] = await dead_letters.groups(db, Filter(1), 10)
    assert (group.count, list(group.run_ids)) == (7, ids[:1:-1])


async def test_each_filter_leaves_out_what_it_says(db: Database, queue: Queue) -> None:
    [mine] = await failed(db, queue, agent="a")
    [other] = await submit(db, queue, new_run(agent="b", queue="system"))
    await fail(db, other, {"type": "OSError", "message": "away"})
    [theirs] = await failed(db, queue, workspace_id=2)
    [lives] = await submit(db, queue, new_run())
    at = (await row(db, other))["finished_at"]
    [fingerprint] = [g.fingerprint for g in await dead_letters.groups(db, Filter(1, agent="a"), 9)]
    for only, wanted in (
        (Filter(1), [mine, other]),
        (Filter(1, agent="b"), [other]),
        (Filter(1, queue="runs"), [mine]),
        (Filter(1, error_type="OSError"), [other]),
        (Filter(1, fingerprint=fingerprint), [mine]),
        (Filter(1, failed_after=at), [other]),
        (Filter(1, failed_before=at), [mine]),
        (Filter(1, agent="nobody"), []),
        (Filter(1, failed_after=at + timedelta(seconds=1)), []),
        (Filter(2), [theirs]),
    ):
        assert await dead_letters.matching(db, only, 10) == wanted, only
        assert sum(g.count for g in await dead_letters.groups(db, only, 10)) == len(wanted)
    assert await dead_letters.matching(db, Filter(1), 1) == [mine]
    assert (await row(db, lives))["fingerprint"] is None


# Replay


async def test_a_replay_is_a_new_run_of_the_same_input(db: Database, queue: Queue) -> None:
    [dead] = await failed(db, queue, input={"q": 1}, metadata={"m": "1"}, max_attempts=7)
    pusher = Pusher(queue)
    [done] = await dead_letters.replay(db, pusher, 1, [dead], fresh=False)
    await pusher.close()
    assert done.verdict == "replayed" and done.new_run_id is not None
    old, new = await row(db, dead), await row(db, done.new_run_id)
    assert (old["status"], old["resolved_by"]) == ("failed", done.new_run_id)
    same = ("session_id", "agent", "queue", "serial", "input", "metadata", "max_attempts")
    assert [new[name] for name in same] == [old[name] for name in same]
    assert (new["status"], new["attempts"], new["replay_of"]) == ("queued", 0, dead)
    assert await dead_letters.count(db, 1) == 0
    with_it = f"1.{done.new_run_id}"
    assert with_it in await queue.take("runs", new_id(), 10)


@pytest.mark.parametrize("fresh", [False, True])
async def test_finished_steps_come_along_unless_it_is_to_be_fresh(
    db: Database, queue: Queue, fresh: bool
) -> None:
    [run_id] = await submit(db, queue, new_run())
    await claimed(db, run_id)
    await db.execute(
        b"INSERT INTO steps (run_id, name, claim_no, workspace_id, value)"
        b" VALUES (%(r)s, 'search', 1, 1, '[1]')",
        {"r": run_id},
    )
    await finish(db, run_id, "failed")
    _, new = (await replay(db, run_id, fresh=fresh))[run_id]
    kept = await db.rows(b"SELECT name, value FROM steps WHERE run_id = %(r)s", {"r": new})
    assert kept == ([] if fresh else [("search", [1])])


async def test_only_what_failed_is_replayed(db: Database, queue: Queue) -> None:
    waits, runs, done, stopped = await submit(db, queue, *(new_run() for _ in range(4)))
    await claim(db, runs, done)
    await finish(db, done, "succeeded")
    await cancel(db, stopped)
    [theirs] = await failed(db, queue, workspace_id=2)
    assert await replay(db, waits, runs, done, stopped, theirs, new_id()) == {
        waits: ("queued", None),
        runs: ("running", None),
        done: ("succeeded", None),
        stopped: ("cancelled", None),
    }
    assert await db.rows(b"SELECT count(*) FROM runs WHERE replay_of IS NOT NULL") == [(0,)]


async def test_a_second_click_returns_the_same_new_run(db: Database, queue: Queue) -> None:
    [dead] = await failed(db, queue)
    _, new = (await replay(db, dead))[dead]
    assert await replay(db, dead) == {dead: ("already", new)}
    assert await replay(db, dead, fresh=True) == {dead: ("already", new)}


async def test_a_lost_answer_is_asked_for_again(db: Database, queue: Queue) -> None:
    [dead] = await failed(db, queue)
    pairs = [(dead, new_id())]
    first, made = await moves.replay(db, 1, pairs, fresh=False)
    again, made_again = await moves.replay(db, 1, pairs, fresh=False)
    assert first == again and made == made_again
    assert first[0].new_run_id == pairs[0][1]


async def test_one_that_is_named_twice_is_replayed_once(db: Database, queue: Queue) -> None:
    [dead] = await failed(db, queue)
    done, made = await moves.replay(db, 1, [(dead, new_id()), (dead, new_id())], fresh=False)
    assert len({found.new_run_id for found in done}) == len(made) == 1
    assert await db.rows(b"SELECT count(*) FROM runs") == [(2,)]


@pytest.mark.parametrize("serial", [True, False], ids=["serial", "parallel"])
async def test_many_clicks_at_once_make_one_run(db: Database, queue: Queue, serial: bool) -> None:
    dead = await failed(db, queue, 10, serial=serial)
    await open_connections(db, 6)
    told = await asyncio.gather(*(replay(db, *dead[::step]) for step in (1, -1, 1, -1, 1, -1)))
    for run_id in dead:
        assert len({answer[run_id][1] for answer in told}) == 1
        assert sorted(answer[run_id][0] for answer in told) == ["already"] * 5 + ["replayed"]
    assert await db.rows(b"SELECT count(*) FROM runs WHERE replay_of IS NOT NULL") == [(10,)]


async def test_a_replay_in_a_session_takes_its_turn(db: Database, queue: Queue) -> None:
    session = new_id()
    dead, holder = await submit(db, queue, new_run(session), new_run(session))
    await fail(db, dead)
    await claimed(db, holder)
    _, new = (await replay(db, dead))[dead]
    assert new is not None
    assert (await claim(db, new))[new].verdict == "parked"
    assert await finish(db, holder, "succeeded") == ("succeeded", [new])


# Discard


async def test_discarded_is_dealt_with_but_can_be_replayed(db: Database, queue: Queue) -> None:
    dead, other = await failed(db, queue, 2)
    [lives] = await submit(db, queue, new_run())
    assert await dead_letters.discard(db, 1, [dead, lives, new_id()]) == [dead]
    assert await dead_letters.discard(db, 1, [dead]) == []
    assert await dead_letters.discard(db, 2, [other]) == []
    assert await dead_letters.matching(db, Filter(1), 10) == [other]
    assert (await replay(db, dead))[dead][0] == "replayed"


async def test_a_replay_and_a_discard_at_once_do_not_lose_the_new_run(
    db: Database, queue: Queue
) -> None:
    dead = await failed(db, queue, 12)
    await open_connections(db, 2)
    told, gone = await asyncio.gather(replay(db, *dead), dead_letters.discard(db, 1, dead))
    assert {verdict for verdict, _ in told.values()} == {"replayed"}
    assert await dead_letters.count(db, 1) == 0
    assert len(gone) in (0, 12)
    assert (await row(db, dead[0]))["error"] == ERROR
