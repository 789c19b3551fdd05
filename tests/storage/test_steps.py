"""Steps and events as storage keeps them: the first value wins, only who is in charge may write."""

import asyncio
import json
from dataclasses import replace

import pytest
from tests.support import claim, new_run, submit

from researchcopilot.core.errors import LostClaim
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Claim
from researchcopilot.storage import events, moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.events import Event
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.steps import read_steps, record_step

pytestmark = pytest.mark.anyio


async def claimed(db: Database, queue: Queue, lease_s: float = 60.0) -> Claim:
    [run_id] = await submit(db, queue, new_run())
    verdict = (await claim(db, [run_id], worker_id=new_id(), lease_s=lease_s))[run_id]
    assert verdict.claim is not None
    return verdict.claim


async def test_the_first_value_wins_and_is_given_back(db: Database, queue: Queue) -> None:
    mine = await claimed(db, queue)
    assert await record_step(db, mine, "a", "[1]") == [1]
    assert await record_step(db, mine, "a", "[2]") == [1]  # also a second sending of the first
    assert await record_step(db, mine, "null", "null") is None
    assert await record_step(db, mine, "null", "5") is None
    assert await read_steps(db, mine.run_id) == {"a": [1], "null": None}


async def test_many_at_once_agree_on_one_value(db: Database, queue: Queue) -> None:
    mine = await claimed(db, queue)
    values = await asyncio.gather(*(record_step(db, mine, "a", json.dumps(n)) for n in range(8)))
    assert len(set(values)) == 1
    assert await read_steps(db, mine.run_id) == {"a": values[0]}


@pytest.mark.parametrize("other", ["claim_no", "worker_id"])
async def test_only_the_claim_in_charge_may_keep(db: Database, queue: Queue, other: str) -> None:
    mine = await claimed(db, queue)
    fields = {"claim_no": 2} if other == "claim_no" else {"worker_id": new_id()}
    with pytest.raises(LostClaim):
        await record_step(db, replace(mine, **fields), "a", "1")
    assert await read_steps(db, mine.run_id) == {}


async def test_after_its_end_a_claim_keeps_nothing(db: Database, queue: Queue) -> None:
    mine = await claimed(db, queue, lease_s=0.0)
    await record_step(db, mine, "before", "1")
    await moves.reclaim(db, limit=10, max_losses=3)
    with pytest.raises(LostClaim):
        await record_step(db, mine, "after", "1")
    # What it had kept is given to the next claim, and cannot be changed by it.
    again = (await claim(db, [mine.run_id], worker_id=new_id()))[mine.run_id].claim
    assert again is not None
    assert await record_step(db, again, "before", "2") == 1


async def test_a_step_and_a_reclaim_at_once_leave_what_was_answered(
    db: Database, queue: Queue
) -> None:
    """Kept and told so, or lost and nothing kept: never one without the other."""
    for _ in range(12):
        mine = await claimed(db, queue, lease_s=0.0)
        keeping = asyncio.create_task(record_step(db, mine, "a", "1"))
        await moves.reclaim(db, limit=10, max_losses=3)
        try:
            told = {"a": await keeping}
        except LostClaim:
            told = {}
        assert await read_steps(db, mine.run_id) == told


# Events


async def test_events_are_there_once_and_an_old_claim_is_fenced(queue: Queue) -> None:
    run_id = new_id()

    async def tell(claim_no: int, n: int) -> None:
        await events.append(queue, [Event(run_id, claim_no, n, "k", f'{{"n":{n}}}')])

    await tell(1, 1)
    await tell(1, 1)
    await tell(1, 2)
    await tell(2, 1)
    await tell(1, 3)
    found = await events.read(queue, run_id)
    assert [id_ for id_, _, _ in found] == ["1-1", "1-2", "2-1"]
    assert [id_ for id_, _, _ in await events.read(queue, run_id, after="1-1")] == ["1-2", "2-1"]
    assert len(await events.read(queue, run_id, limit=1)) == 1
    [[ttl]] = [await queue.all([("TTL", queue.key(f"events:{run_id}"))])]
    assert 0 < ttl <= events.KEPT_S


async def test_a_stream_is_capped(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEPT", 50)
    run_id = new_id()
    await events.append(queue, [Event(run_id, 1, n, "k", "{}") for n in range(1, 1001)])
    found = await events.read(queue, run_id, limit=5000)
    assert len(found) < 400  # whole nodes of the stream go, so a few more than the cap stay
    assert found[-1][0] == "1-1000"


async def test_runs_without_events_have_no_stream(queue: Queue) -> None:
    assert await events.read(queue, new_id()) == []
