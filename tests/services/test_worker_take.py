"""What a worker takes, and what it does with each verdict of the claim; what stands in its list and
it does not remember counts as taken."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.support import (
    Gate,
    delayed,
    echo,
    empty,
    ended,
    eventually,
    in_no_hands,
    ledger,
    metric,
    new_run,
    prompt,
    row,
    running,
    submit,
    submit_one,
    waiting,
    waits_in,
    working,
)

from researchcopilot.agents.contract import Context
from researchcopilot.core.ids import new_id
from researchcopilot.core.settings import Settings
from researchcopilot.storage import moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.worker import take

pytestmark = pytest.mark.anyio


# Take


async def test_never_more_than_there_are_free_slots(
    settings: Settings, db: Database, queue: Queue
) -> None:
    gate = Gate()
    ids = await submit(db, queue, *(new_run(agent="it") for _ in range(5)))
    async with working(settings, db, queue, {"it": gate}, queues={"runs": 2}):
        await eventually(lambda: len(gate.inside) == 2)
        assert await waiting(queue, 3)
        assert [(await row(db, run_id))["status"] for run_id in ids].count("running") == 2
        gate.open.set()
        for run_id in ids:
            await ended(db, run_id)
        await eventually(lambda: empty(queue))


async def test_a_slot_is_free_only_when_its_finish_has_committed(
    settings: Settings, db: Database, queue: Queue
) -> None:
    gate = Gate()
    first, second = await submit(db, queue, new_run(agent="it"), new_run(agent="it"))
    with psycopg.connect(settings.database.url) as blocker:
        async with working(settings, db, queue, {"it": gate}, queues={"runs": 1}) as worker:
            await running(db, first)
            blocker.execute("SELECT 1 FROM runs WHERE run_id = %s FOR UPDATE", [first])
            gate.open.set()
            await eventually(lambda: waits_in(db, "finish_1"))
            assert (worker.takers[0].slots.free, len(worker.hands)) == (0, 1)
            assert await waiting(queue, 1)
            blocker.rollback()
            await ended(db, second)


async def test_first_in_is_first_out(settings: Settings, db: Database, queue: Queue) -> None:
    """Also within one group of takes and claims, and of submits."""
    order: list[str] = []

    async def agent(ctx: Context, given: Any) -> Any:
        order.append(ctx.run.run_id)

    ids = await submit(db, queue, *(new_run(agent="it") for _ in range(40)))
    async with working(settings, db, queue, {"it": agent}, queues={"runs": 8}):
        await eventually(lambda: len(order) == 40)
    assert order == ids


async def test_several_queues_each_with_slots_of_its_own(
    settings: Settings, db: Database, queue: Queue
) -> None:
    gate = Gate()
    slow = [new_run(agent="it", queue="slow") for _ in range(3)]
    await submit(db, queue, *slow)
    agents: dict[str, Callable[..., Any]] = {"it": gate, "echo": echo}
    async with working(settings, db, queue, agents, queues={"slow": 2, "runs": 1}):
        await eventually(lambda: len(gate.inside) == 2)
        assert (await ended(db, await submit_one(db, queue)))["status"] == "succeeded"
        gate.open.set()
        for run in slow:
            await ended(db, run.run_id)


NO_ENTRIES = (
    "garbage", "", "1.", ".x", "probe.", "probe.soon", "probe.-1", "1." + "z" * 36,
    "01.0190a3f0-0000-7000-8000-000000000000", "1.0190A3F0-0000-7000-8000-000000000000",
    "1." + "0" * 36, "99999999999.0190a3f0-0000-7000-8000-000000000000",
    "1.0190a3f0-0000-7000-8000-00000000000\u0660",
)  # fmt: skip


@pytest.mark.parametrize("slots", [1, 4])
async def test_what_is_no_entry_is_dropped_and_the_queue_goes_on(
    settings: Settings, db: Database, queue: Queue, slots: int
) -> None:
    """An id that Postgres refuses would take with it all that were taken in its group."""
    with prompt(settings) as client:
        client.rpush("queue:runs", *NO_ENTRIES)
        ids = await submit(db, queue, *(new_run() for _ in range(3)))
        client.rpush("queue:runs", *NO_ENTRIES)
    async with working(settings, db, queue, {"echo": echo}, queues={"runs": slots}) as worker:
        for run_id in ids:
            await ended(db, run_id)
        await eventually(lambda: empty(queue))
        assert not worker.handback.known


async def test_a_probe_counts_only_when_what_was_taken_with_it_is_claimed(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """Else the janitor would call those lost that are being claimed just now."""
    first, _ = await submit(db, queue, new_run(), new_run())
    await queue.probe("runs", 1000)
    with psycopg.connect(settings.database.url) as blocker:
        blocker.execute("SELECT 1 FROM runs WHERE run_id = %s FOR UPDATE", [first])
        async with working(settings, db, queue, {"echo": echo}):
            await eventually(lambda: waits_in(db, "claim_1"))
            assert await queue.last_probed("runs") is None
            blocker.rollback()
            await eventually(lambda: queue.last_probed("runs"))


async def test_a_probe_that_cannot_be_told_of_comes_back(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """Protects: while a probe counts as under way no other is sent, and lost pushes wait for a
    minute. Red while a worker drops the probe that a read-only Redis refuses."""
    first, _ = await submit(db, queue, new_run(), new_run())
    await queue.probe("runs", 1000)
    with psycopg.connect(settings.database.url) as blocker, prompt(settings) as client:
        blocker.execute("SELECT 1 FROM runs WHERE run_id = %s FOR UPDATE", [first])
        async with working(settings, db, queue, {"echo": echo}):
            await eventually(lambda: waits_in(db, "claim_1"))
            before = refusals(client)
            client.config_set("min-replicas-to-write", 1)
            try:
                blocker.rollback()
                await ended(db, first)
                await eventually(lambda: refusals(client) > before)
            finally:
                client.config_set("min-replicas-to-write", 0)
            assert await eventually(lambda: queue.last_probed("runs")) == 1000


def refusals(client: Any) -> int:
    return int(client.info("errorstats").get("errorstat_NOREPLICAS", {"count": 0})["count"])


# Claim


async def test_an_entry_that_is_not_due_goes_to_the_delayed_set(
    settings: Settings, db: Database, queue: Queue
) -> None:
    run = new_run(delay_s=50)
    await submit(db, queue, run)
    with prompt(settings) as client:
        client.delete("queue:runs:delayed")
        client.rpush("queue:runs", f"1.{run.run_id}")
        async with working(settings, db, queue, {"echo": echo}):
            [(entry, score)] = await eventually(
                lambda: client.zrange("queue:runs:delayed", 0, -1, withscores=True)
            )
            seconds, _ = client.time()
            assert entry == f"1.{run.run_id}"
            assert 45 < score - seconds <= 51
            await eventually(lambda: in_no_hands(queue))
    assert (await row(db, run.run_id))["claim_no"] == 0


async def test_a_parked_run_leaves_the_hands_and_comes_when_its_session_is_free(
    settings: Settings, db: Database, queue: Queue
) -> None:
    gate = Gate()
    first = new_run(agent="it")
    second = new_run(first.session_id)
    async with working(settings, db, queue, {"it": gate, "echo": echo}):
        await submit(db, queue, first, second)
        await running(db, first.run_id)
        await eventually(lambda: parked(db, second.run_id))
        await eventually(lambda: only_in_hands(queue, 1))
        gate.open.set()
        await ended(db, second.run_id)
    found = await row(db, first.run_id), await row(db, second.run_id)
    assert found[0]["finished_at"] <= found[1]["started_at"]


async def parked(db: Database, run_id: str) -> bool:
    return bool((await row(db, run_id))["parked"])


async def only_in_hands(queue: Queue, n: int) -> bool:
    depths = await queue.depths("runs")
    return (depths.waiting, depths.processing, depths.delayed) == (0, n, 0)


async def test_what_is_gone_is_acknowledged_and_not_executed(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """Terminal, unknown, and standing in the list twice."""
    [cancelled] = await submit(db, queue, new_run())
    await moves.cancel(db, 1, [cancelled])
    run_id = await submit_one(db, queue)
    with prompt(settings) as client:
        client.rpush("queue:runs", f"1.{new_id()}", f"1.{run_id}", f"1.{run_id}")
    async with working(settings, db, queue, {"echo": echo}):
        await ended(db, run_id)
        await eventually(lambda: empty(queue))
    assert len(await ledger(db, run_id)) == 1
    assert await ledger(db, cancelled) == []


async def test_a_group_that_postgres_refuses_costs_only_its_poisoned_member(
    settings: Settings, db: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger refuses one of five. It waits and is tried again; the others are executed."""
    ids = await submit(db, queue, *(new_run() for _ in range(5)))
    await db.execute(f"ALTER TABLE claims ADD CONSTRAINT no CHECK (run_id <> '{ids[2]}')".encode())
    monkeypatch.setattr(take, "REFUSED_S", 0.0)
    async with working(settings, db, queue, {"echo": echo}, queues={"runs": 5}):
        for run_id in (*ids[:2], *ids[3:]):
            await ended(db, run_id)
        assert (await row(db, ids[2]))["status"] == "queued"
        await eventually(lambda: delayed(queue))
        await db.execute(b"ALTER TABLE claims DROP CONSTRAINT no")
        await queue.due("runs")
        await ended(db, ids[2])


async def test_a_queue_of_another_type_is_seen_and_outlived(
    settings: Settings, db: Database, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that no server being away explains must not end the loop in silence."""
    with prompt(settings) as client:
        client.set("queue:runs", "no list")
        async with working(settings, db, queue, {"echo": echo}):
            await eventually(lambda: "taking failed" in caplog.text)
            client.delete("queue:runs")
            await ended(db, await submit_one(db, queue))


# Hands that are compared with the list


async def test_entries_that_it_finds_in_its_own_list_count_as_taken(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """More than it has slots; some of them are no entries, one is not due."""
    worker_id = new_id()
    ids = await submit(db, queue, *(new_run() for _ in range(7)))
    [later] = await submit(db, queue, new_run(delay_s=50))
    with prompt(settings) as client:
        client.delete("queue:runs", "queue:runs:delayed")
        mine = f"queue:runs:processing:{worker_id}"
        client.rpush(mine, "garbage", f"1.{later}", *(f"1.{run_id}" for run_id in ids))
        async with working(
            settings, db, queue, {"echo": echo}, worker_id=worker_id, queues={"runs": 2}
        ):
            for run_id in ids:
                await ended(db, run_id)
            await eventually(lambda: client.llen(mine) == 0)
            assert client.zrange("queue:runs:delayed", 0, -1) == [f"1.{later}"]


async def test_the_lost_answer_of_a_take_is_found_after_the_connection_broke(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """Redis had moved the entry, the worker never heard of it."""
    before = metric("researchcopilot_entries_found_total")
    async with working(settings, db, queue, {"echo": echo}) as worker:
        await ended(db, await submit_one(db, queue))
        [run_id] = await submit(db, queue, new_run(delay_s=0.01))
        with prompt(settings) as client:
            client.delete("queue:runs", "queue:runs:delayed")
            client.rpush(f"queue:runs:processing:{worker.info.worker_id}", f"1.{run_id}")
            client.client_kill_filter(_type="normal", skipme=True)
        await ended(db, run_id)
    assert metric("researchcopilot_entries_found_total") == before + 1


async def test_what_is_in_its_hands_is_not_taken_twice_when_it_compares(
    settings: Settings, db: Database, queue: Queue
) -> None:
    gate = Gate()
    gone = {"queue": "runs", "verdict": "gone"}
    before = metric("researchcopilot_claim_verdicts_total", **gone)
    async with working(settings, db, queue, {"it": gate, "echo": echo}):
        held = await submit_one(db, queue, "it")
        await running(db, held)
        with prompt(settings) as client:
            client.client_kill_filter(_type="normal", skipme=True)
        await ended(db, await submit_one(db, queue))
        gate.open.set()
        await ended(db, held)
    assert metric("researchcopilot_claim_verdicts_total", **gone) == before
    assert await ledger(db, held) == [(1, "succeeded", True)]


async def test_a_fault_of_the_worker_leaves_no_entry_in_its_hands(
    settings: Settings, db: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run is taken back by the lease; the entry would stand in the list as long as it lives."""

    faults = []

    async def broken(hand: Any, outcome: Any) -> None:
        faults.append(hand.entry)
        raise ZeroDivisionError("a fault of ours")

    async with working(settings, db, queue, {"it": echo}) as worker:
        monkeypatch.setattr(worker.finisher, "finish", broken)
        await submit_one(db, queue, "it")
        await eventually(lambda: faults)
        await eventually(lambda: in_no_hands(queue))
        await eventually(lambda: not worker.handback.known)
