"""What follows a success, digest and memory: committed with it, once for ever, or not at all."""

import asyncio
import json
from typing import Any

import pytest
from psycopg import errors
from tests.storage.verbs import WORKER, cancel, claim, claimed, finish
from tests.support import new_run, row, submit, submit_one

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Outcome
from researchcopilot.core.text import dumps
from researchcopilot.storage import memories, moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.push import Pusher
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


def follow_up(**wanted: Any) -> str:
    """As a worker asks for it: a digest after five minutes, and a memory."""
    run = {"run_id": new_id(), "agent": "digest", "queue": "system", "delay_s": 300.0,
           "max_attempts": 5}  # fmt: skip
    memory = {"memory_id": new_id(), "question": "why?", "text": "so", "tokens": ["why", "so"],
              "days": 90.0}  # fmt: skip
    return dumps({"run": run, "memory": memory, **wanted})


async def left(db: Database, run_id: str) -> tuple[int, int]:
    """How many runs follow it, and how many memories it has left."""
    [(runs,)] = await db.rows(b"SELECT count(*) FROM runs WHERE follows = %(r)s", {"r": run_id})
    [(kept,)] = await db.rows(b"SELECT count(*) FROM memories WHERE run_id = %(r)s", {"r": run_id})
    return runs, kept


async def test_a_success_and_what_follows_it_are_one_commit(db: Database, queue: Queue) -> None:
    """Protects: what the digest run is, when it is due, its push; what the memory holds."""
    run_id = await submit_one(db, queue)
    await claimed(db, run_id)
    outcome = Outcome(run_id, 1, WORKER, "succeeded", "1", follow_up=follow_up())
    [finished], pushes = await moves.finish(db, WORKER, [outcome])
    assert finished.verdict == "succeeded"
    [digest] = await db.dicts(b"SELECT * FROM runs WHERE follows = %(r)s", {"r": run_id})
    source = await row(db, run_id)
    assert (digest["agent"], digest["queue"], digest["serial"]) == ("digest", "system", False)
    assert (digest["session_id"], digest["input"]) == (None, {"run_id": run_id})
    assert (digest["max_attempts"], digest["status"]) == (5, "queued")
    assert (digest["run_at"] - source["finished_at"]).total_seconds() == 300
    [push] = pushes
    assert (push.queue, push.entry.run_id, push.entry.workspace_id, push.delay_s) == (
        "system", digest["run_id"], 1, 300.0,
    )  # fmt: skip
    [memory] = await memories.list_memories(db, 1, before=None, limit=9)
    assert (memory.run_id, memory.question, memory.text) == (run_id, "why?", "so")
    assert memory.created_at == source["finished_at"]
    assert (memory.expires_at - memory.created_at).days == 90


async def test_finish_sent_twice_leaves_one_of_each(db: Database, queue: Queue) -> None:
    """Protects: the answer of the first sending is lost; the second, with ids of its own or the
    same, makes nothing. Also not when the memory was deleted meanwhile."""
    run_id = await submit_one(db, queue)
    await claimed(db, run_id)
    asked = follow_up()
    assert (await finish(db, run_id, "succeeded", follow_up=asked))[0] == "succeeded"
    assert await left(db, run_id) == (1, 1)
    for again in (asked, follow_up()):
        assert await finish(db, run_id, "succeeded", follow_up=again) == ("already", [])
        assert await left(db, run_id) == (1, 1)
    [memory] = await memories.list_memories(db, 1, before=None, limit=9)
    assert await memories.forget(db, 1, memory.memory_id)
    assert (await finish(db, run_id, "succeeded", follow_up=asked))[0] == "already"
    assert await left(db, run_id) == (1, 0)


async def test_two_workers_that_end_one_run_at_once_leave_one_of_each(
    db: Database, queue: Queue
) -> None:
    """Protects: the one that lost its claim leaves nothing, in whichever order they come."""
    for _ in range(5):
        run_id = await submit_one(db, queue)
        await claimed(db, run_id, worker_id=new_id())  # it stalls, and its lease runs out
        await db.execute(b"UPDATE runs SET lease_until = now() WHERE status = 'running'")
        await moves.reclaim(db, limit=10, max_losses=3)
        assert await claimed(db, run_id) == 2
        verdicts = await asyncio.gather(
            *(finish(db, run_id, "succeeded", n, follow_up=follow_up()) for n in (1, 2, 1, 2))
        )
        words = sorted(verdict for verdict, _ in verdicts)
        assert words == ["already", "stale", "stale", "succeeded"]
        assert await left(db, run_id) == (1, 1)


async def test_what_did_not_succeed_leaves_nothing(db: Database, queue: Queue) -> None:
    """Protects: failures, retries, releases; and a late success that ends as cancelled."""
    for kind in ("failed", "retry", "release"):
        run_id = await submit_one(db, queue)
        await claimed(db, run_id)
        await finish(db, run_id, kind, follow_up=follow_up())
        assert await left(db, run_id) == (0, 0), kind
    run_id = await submit_one(db, queue)
    await claimed(db, run_id)
    await cancel(db, run_id)
    assert (await finish(db, run_id, "succeeded", follow_up=follow_up()))[0] == "cancelled"
    assert await left(db, run_id) == (0, 0)


async def test_in_a_group_each_gets_its_own(db: Database, queue: Queue) -> None:
    """Protects: the follow-ups of a group are not mixed up, and those without get none."""
    ids = await submit(db, queue, *(new_run() for _ in range(4)))
    await claim(db, *ids)
    both, memory, run = json.loads(follow_up()), json.loads(follow_up()), json.loads(follow_up())
    del memory["run"], run["memory"]
    asked = [dumps(both), None, dumps(memory), dumps(run)]
    outcomes = [
        Outcome(run_id, 1, WORKER, "succeeded", "1", follow_up=text)
        for run_id, text in zip(ids, asked, strict=True)
    ]
    await moves.finish(db, WORKER, outcomes)
    assert [await left(db, run_id) for run_id in ids] == [(1, 1), (0, 0), (0, 1), (1, 0)]
    rows = await db.rows(b"SELECT memory_id, run_id FROM memories")
    wanted = [(made["memory"]["memory_id"], ids[n]) for made, n in ((both, 0), (memory, 2))]
    assert sorted(rows) == sorted(wanted)


async def test_a_second_digest_of_a_run_is_impossible(db: Database, queue: Queue) -> None:
    """Protects: the unique key, which holds whatever the code does; other runs do not feel it."""
    run_id = await submit_one(db, queue)
    await claimed(db, run_id)
    await finish(db, run_id, "succeeded", follow_up=follow_up())
    copy = (
        b"INSERT INTO runs (run_id, workspace_id, follows, agent, queue, serial, input, run_at,"
        b" ready_at, deadline, max_attempts, created_at) SELECT gen_random_uuid(), workspace_id,"
        b" follows, %(agent)s, queue, serial, input, run_at, ready_at, deadline, max_attempts,"
        b" created_at FROM runs WHERE follows IS NOT NULL AND agent = 'digest'"
    )
    with pytest.raises(errors.UniqueViolation):
        await db.execute(copy, {"agent": "digest"})
    assert await db.execute(copy, {"agent": "another"}) == 1


async def test_the_digest_waits_in_the_delayed_set(db: Database, queue: Queue) -> None:
    """Protects: five minutes are five minutes for Redis too."""
    run_id = await submit_one(db, queue)
    await claimed(db, run_id)
    outcome = Outcome(run_id, 1, WORKER, "succeeded", "1", follow_up=follow_up())
    _, pushes = await moves.finish(db, WORKER, [outcome])
    pusher = Pusher(queue)
    pusher.push(pushes)
    await pusher.close()
    depths = await queue.depths("system")
    assert (depths.delayed, depths.waiting) == (1, 0)
