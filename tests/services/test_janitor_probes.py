"""Single lost pushes are found without walking the queue: a probe that was taken says that all that
stood before it was taken too. And delayed runs stand in the delayed set, whatever became of their
push."""

import asyncio
from typing import Any

import pytest
from prometheus_client import REGISTRY
from tests.support import (
    ended,
    eventually,
    metric,
    new_run,
    prompt,
    row,
    submit,
    submit_one,
    with_recovery,
    working,
)

from researchcopilot.core.ids import new_id
from researchcopilot.core.settings import Settings
from researchcopilot.janitor import probes
from researchcopilot.janitor.delayed import add_due_soon
from researchcopilot.janitor.probes import find_lost
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


@pytest.fixture
def quick(settings: Settings) -> Settings:
    return with_recovery(settings, probe_slack_s=0.05)


async def nothing(ctx: Any, given: Any) -> None: ...


def lost(queue: str = "runs") -> float:
    return metric("researchcopilot_lost_pushes_total", queue=queue)


async def ready_long_ago(db: Database) -> None:
    """All of them are older than a first probe, however quickly that comes."""
    await db.execute(b"UPDATE runs SET ready_at = ready_at - interval '1 minute'")


async def found(db: Database, queue: Queue, settings: Settings, run_id: str) -> bool:
    """One round of the duty; true once the run has ended."""
    await find_lost(db, queue, settings.recovery)
    return bool((await row(db, run_id))["status"] == "succeeded")


@pytest.mark.parametrize("which", [0, 1, 2], ids=["first", "middle", "last"])
async def test_an_entry_that_is_gone_is_found(
    quick: Settings, db: Database, queue: Queue, which: int
) -> None:
    """Also the last of its queue, which nothing that comes later would betray."""
    before = lost()
    ids = await submit(db, queue, *(new_run(agent="it") for _ in range(3)))
    with prompt(quick) as client:
        assert client.lrem("queue:runs", 0, f"1.{ids[which]}") == 1
    async with working(quick, db, queue, {"it": nothing}):
        await eventually(lambda: found(db, queue, quick, ids[which]))
    assert lost() == before + 1
    for run_id in ids:
        assert (await ended(db, run_id))["claim_no"] == 1


async def test_a_queue_without_a_loss_stands_at_zero(
    quick: Settings, db: Database, queue: Queue
) -> None:
    """A series that is born with the first losses hides them from the alert."""
    await submit(db, queue, new_run(queue="quiet"))
    await find_lost(db, queue, quick.recovery)
    assert REGISTRY.get_sample_value("researchcopilot_lost_pushes_total", {"queue": "quiet"}) == 0


async def test_of_several_the_oldest_is_the_first_to_be_taken(
    quick: Settings, db: Database, queue: Queue
) -> None:
    order: list[str] = []

    async def agent(ctx: Any, given: Any) -> None:
        order.append(ctx.run.run_id)

    ids = await submit(db, queue, *(new_run(agent="it") for _ in range(20)))
    ids += await submit(db, queue, *(new_run(agent="it") for _ in range(3)))
    await ready_long_ago(db)
    with prompt(quick) as client:
        client.delete("queue:runs")
    async with working(quick, db, queue, {"it": agent}, queues={"runs": 1}):
        await eventually(lambda: found(db, queue, quick, ids[-1]))
    assert order == ids


async def test_what_only_waits_is_not_called_lost(
    quick: Settings, db: Database, queue: Queue
) -> None:
    """The worker's hands are full: no probe comes through, and nothing is wrong."""
    gate = asyncio.Event()

    async def agent(ctx: Any, given: Any) -> None:
        await gate.wait()

    before = lost()
    ids = await submit(db, queue, *(new_run(agent="it") for _ in range(4)))
    async with working(quick, db, queue, {"it": agent}, queues={"runs": 1}) as worker:
        await eventually(lambda: len(worker.hands) == 1)
        await ready_long_ago(db)
        for _ in range(5):
            await find_lost(db, queue, quick.recovery)
        gate.set()
        for run_id in ids:
            await ended(db, run_id)
    assert lost() == before


async def test_a_queue_that_nobody_serves_raises_no_alarm_and_does_not_fill(
    quick: Settings, db: Database, queue: Queue
) -> None:
    before = lost("lonely")
    ids = await submit(db, queue, *(new_run(queue="lonely") for _ in range(3)))
    await ready_long_ago(db)
    for _ in range(5):
        await find_lost(db, queue, quick.recovery)
    with prompt(quick) as client:
        *entries, probe = client.lrange("queue:lonely", 0, -1)
        assert entries == [f"1.{run_id}" for run_id in ids]
        assert probe.startswith("probe.")
        # The mark under way is forgotten after a while. The next one takes its place.
        client.delete("queue:lonely:probe")
        await find_lost(db, queue, quick.recovery)
        assert client.llen("queue:lonely") == 4
    assert lost("lonely") == before


async def test_what_was_just_pushed_may_be_on_its_way(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """Younger than the slack: its push may still come."""
    slow = with_recovery(settings, probe_slack_s=60.0)
    before = lost()
    run_id = await submit_one(db, queue, "it")
    with prompt(settings) as client:
        client.delete("queue:runs")
    async with working(slow, db, queue, {"it": nothing}):
        for _ in range(5):
            await find_lost(db, queue, slow.recovery)
            await eventually(lambda: probed(queue))
    assert (lost(), (await row(db, run_id))["status"]) == (before, "queued")


async def probed(queue: Queue) -> int | None:
    return await queue.last_probed("runs")


async def test_what_was_found_is_pushed_once_and_not_each_round(
    quick: Settings, db: Database, queue: Queue
) -> None:
    """The same probe again finds nothing: the row says when it was hinted."""
    before = lost()
    await submit(db, queue, *(new_run() for _ in range(3)))
    with prompt(quick) as client:
        client.delete("queue:runs")
        worker_id = new_id()

        async def taken() -> bool:
            await find_lost(db, queue, quick.recovery)
            for text in await queue.take("runs", worker_id, 10):
                if text.startswith("probe."):
                    await queue.probed("runs", worker_id, text)
            return lost() > before

        await eventually(taken)
        for _ in range(3):
            await find_lost(db, queue, quick.recovery)
    assert lost() == before + 3


async def test_more_than_a_batch_is_found_in_one_round_in_its_order(
    quick: Settings, db: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects: after an hour in which no push came through, they come back by the thousands."""
    monkeypatch.setattr(probes, "BATCH", 2)
    monkeypatch.setattr(probes, "PAGES", 3)
    before, worker_id = lost(), new_id()
    ids = await submit(db, queue, *(new_run() for _ in range(7)))
    with prompt(quick) as client:
        client.delete("queue:runs")

        async def found_some() -> bool:
            await find_lost(db, queue, quick.recovery)
            if lost() > before:
                return True
            for text in await queue.take("runs", worker_id, 10):
                if text.startswith("probe."):
                    await queue.probed("runs", worker_id, text)
            return False

        await eventually(found_some)
        entries = [text for text in client.lrange("queue:runs", 0, -1) if "probe" not in text]
    assert entries == [f"1.{run_id}" for run_id in ids[:6]]


async def test_a_push_to_the_head_that_fails_is_found_by_a_later_probe(
    quick: Settings, db: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await submit_one(db, queue, "it")
    with prompt(quick) as client:
        client.delete("queue:runs")
    push = queue.push_head
    fails = [True]

    async def push_head(*arguments: Any) -> None:
        if fails.pop() if fails else False:
            raise ConnectionError("on its way to the head")
        await push(*arguments)

    monkeypatch.setattr(queue, "push_head", push_head)

    async def look() -> bool:
        try:
            return await found(db, queue, quick, run_id)
        except ConnectionError:
            return False

    async with working(quick, db, queue, {"it": nothing}):
        await eventually(look)
    assert fails == []


async def test_a_delayed_run_is_due_also_without_a_scheduler(
    quick: Settings, db: Database, queue: Queue
) -> None:
    """Nobody moves it from the set to the list: the probe finds it some seconds late."""
    run_id = await submit_one(db, queue, "it", delay_s=0.2)
    async with working(quick, db, queue, {"it": nothing}):
        for _ in range(2):
            await find_lost(db, queue, quick.recovery)
        assert (await row(db, run_id))["status"] == "queued"
        await eventually(lambda: found(db, queue, quick, run_id))


async def test_a_probe_that_is_none_does_no_harm(
    quick: Settings, db: Database, queue: Queue
) -> None:
    garbage = ("probe.", "probe.soon", "probe.99999999999999999999", "probe.-5")
    [run_id] = await submit(db, queue, new_run(agent="it"))
    with prompt(quick) as client:
        client.delete("queue:runs")
        client.rpush("queue:runs", *garbage)
    async with working(quick, db, queue, {"it": nothing}):
        await eventually(lambda: found(db, queue, quick, run_id))


# The delayed set


async def test_delayed_runs_that_are_due_soon_are_put_back_into_their_set(
    settings: Settings, db: Database, queue: Queue
) -> None:
    soon, other, far = new_run(delay_s=60), new_run(delay_s=90, queue="other"), new_run(delay_s=600)
    kept, due = new_run(delay_s=100), new_run()
    await submit(db, queue, soon, other, far, kept, due)
    with prompt(settings) as client:
        client.delete("queue:runs", "queue:other:delayed")
        client.zrem("queue:runs:delayed", f"1.{soon.run_id}", f"1.{far.run_id}")
        score = client.zscore("queue:runs:delayed", f"1.{kept.run_id}")
        for _ in range(2):
            await add_due_soon(db, queue)
        assert client.zrange("queue:runs:delayed", 0, -1) == [
            f"1.{soon.run_id}", f"1.{kept.run_id}",
        ]  # fmt: skip
        assert client.zrange("queue:other:delayed", 0, -1) == [f"1.{other.run_id}"]
        assert client.llen("queue:runs") == 0
        late = client.zscore("queue:runs:delayed", f"1.{kept.run_id}") - score
        assert abs(late) < 0.5
        wait = client.zscore("queue:runs:delayed", f"1.{soon.run_id}") - client.time()[0]
        assert 50 < wait < 62
