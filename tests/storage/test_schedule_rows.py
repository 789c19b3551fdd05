"""The rows of schedules: names, pauses, workspaces, triggers, and the product's own."""

import asyncio
from dataclasses import replace

import pytest
from tests.storage.scheduled import back, current, end_runs, fire, history, make, runs_of

from researchcopilot.core.errors import BadInput, Conflict
from researchcopilot.core.models import IdempotencyKey
from researchcopilot.core.schedules import SystemSchedule
from researchcopilot.core.settings import RetentionSettings
from researchcopilot.storage import schedules
from researchcopilot.storage.db import Database
from researchcopilot.storage.retention import prune

pytestmark = pytest.mark.anyio


async def test_a_name_is_taken_once_in_a_workspace(db: Database) -> None:
    await make(db, name="daily")
    with pytest.raises(BadInput, match="'daily'") as caught:
        await make(db, name="daily")
    assert caught.value.field == "name"
    other = await make(db, name="hourly")
    with pytest.raises(BadInput, match="'daily'"):
        await schedules.change(db, 1, other.schedule_id, lambda s, now: replace(s, name="daily"))
    assert (await current(db, other)).name == "hourly"


async def test_a_pause_makes_up_for_nothing(db: Database) -> None:
    """Protects: resumed, it goes on with the first tick from then on."""
    made = await make(db)
    await schedules.change(db, 1, made.schedule_id, schedules.paused)
    assert (await current(db, made)).next_tick is None
    await db.execute(b"UPDATE schedules SET anchor = anchor - interval '10 hours'")
    resumed = await schedules.change(db, 1, made.schedule_id, schedules.resumed)
    assert resumed is not None
    assert resumed.paused_at is None
    assert resumed.next_tick == made.next_tick
    assert await fire(db) == []


async def test_another_workspace_has_none_of_it(db: Database) -> None:
    await db.execute(b"INSERT INTO workspaces (name) VALUES ('other')")
    made = await make(db)
    assert await schedules.get(db, 2, made.schedule_id) is None
    assert await schedules.list_schedules(db, 2, after=None, limit=10) == []
    assert await schedules.change(db, 2, made.schedule_id, schedules.paused) is None
    assert await schedules.delete(db, 2, made.schedule_id) is False
    assert await schedules.trigger(db, 2, made.schedule_id, None) is None
    assert await schedules.list_ticks(db, 2, made.schedule_id, before=None, limit=10) == []


async def test_deleting_takes_the_history_and_leaves_the_runs(db: Database) -> None:
    made = await make(db)
    await back(db, made, 3600)
    await fire(db)
    assert await schedules.delete(db, 1, made.schedule_id)
    assert await db.rows(b"SELECT 1 FROM ticks") == []
    assert len(await runs_of(db, made)) == 1


async def test_old_ticks_leave_and_schedules_stay(db: Database) -> None:
    made = await make(db, overlap="allow")
    for age in (40, 20):
        await back(db, made, 3601 + age)
        await fire(db)
        await db.execute(
            b"UPDATE ticks SET tick = tick - make_interval(days => %(d)s),"
            b" fired_at = fired_at - make_interval(days => %(d)s)"
            b" WHERE tick > now() - interval '1 day'",
            {"d": age},
        )
    assert await prune(db, "ticks", RetentionSettings(runs_days=30.0), 100) == 1
    assert await prune(db, "ticks", RetentionSettings(runs_days=30.0), 100) == 0
    assert len(await history(db, made)) == 1
    assert (await current(db, made)).next_tick is not None


# Trigger


def key(word: str, body: str = "body") -> IdempotencyKey:
    return IdempotencyKey(1, "POST /v1/schedules/{schedule_id}:trigger", word, body)


async def test_a_trigger_fires_now_and_leaves_the_rule(db: Database) -> None:
    made = await make(db)
    await schedules.change(db, 1, made.schedule_id, schedules.paused)
    done = await schedules.trigger(db, 1, made.schedule_id, None)
    assert done is not None
    assert done.verdict == "fired"
    [run] = await runs_of(db, made)
    assert done.push is not None
    assert (run["run_id"], run["session_id"]) == (done.run_id, made.session_id)
    [(_, outcome)] = await history(db, made)
    assert outcome == "fired"
    busy = await schedules.trigger(db, 1, made.schedule_id, key("a"))
    assert busy is not None
    assert (busy.verdict, busy.run_id, busy.push) == ("busy", done.run_id, None)
    await end_runs(db, made)
    free = await schedules.trigger(db, 1, made.schedule_id, key("a"))
    assert free is not None
    assert free.verdict == "fired"  # a refusal has not used the key up


async def test_a_trigger_with_a_key_fires_once(db: Database) -> None:
    """Protects: sent again, at once from two sides, or with another body."""
    made = await make(db, overlap="allow")
    both = await asyncio.gather(
        *(schedules.trigger(db, 1, made.schedule_id, key("k")) for _ in range(2))
    )
    assert sorted(done.verdict for done in both if done) == ["fired", "replayed"]
    assert len({done.run_id for done in both if done}) == 1
    other = await schedules.trigger(db, 1, made.schedule_id, key("k", "another"))
    assert other is not None
    assert other.verdict == "mismatch"
    assert len(await runs_of(db, made)) == 1


# The product's own

REBUILD = SystemSchedule("rebuild", "rebuild_index", interval_s=300.0, unique_key="rebuild_index")


async def test_every_workspace_has_the_products_schedules(db: Database) -> None:
    """Protects: made once, also by two at once, also for a new workspace; never deleted."""
    assert sorted(
        await asyncio.gather(*(schedules.ensure_system(db, [REBUILD]) for _ in range(3)))
    ) == [0, 0, 1]
    await db.execute(b"INSERT INTO workspaces (name) VALUES ('other')")
    assert await schedules.ensure_system(db, [REBUILD]) == 1
    [made] = await schedules.list_schedules(db, 1, after=None, limit=10)
    assert (made.name, made.system, made.session_id, made.queue) == (
        "rebuild", True, None, "system"
    )  # fmt: skip
    with pytest.raises(Conflict, match="paused, not deleted"):
        await schedules.delete(db, 1, made.schedule_id)
    assert await schedules.change(db, 1, made.schedule_id, schedules.paused)


async def test_a_tick_joins_a_run_that_waits_already(db: Database) -> None:
    """Protects: one unclaimed run of a unique key; the tick says which one did its work."""
    await schedules.ensure_system(db, [replace(REBUILD, misfire="latest")])
    [made] = await schedules.list_schedules(db, 1, after=None, limit=10)
    await db.execute(b"UPDATE schedules SET overlap = 'allow'")
    await back(db, made, 301)
    assert [fired.outcome for fired in await fire(db)] == ["fired"]
    await back(db, made, 301)
    [merged] = await fire(db)
    assert (merged.outcome, merged.push) == ("merged", None)
    [run] = await runs_of(db, made)
    last = await schedules.last_ticks(db, [made.schedule_id])
    assert last[made.schedule_id].run_id == run["run_id"]


async def test_a_schedule_that_cannot_go_on_is_paused_and_says_why(db: Database) -> None:
    made = await make(db)
    assert await schedules.halt(db, made, "no such zone")
    assert not await schedules.halt(db, made, "again")
    after = await current(db, made)
    assert (after.paused_why, after.next_tick) == ("no such zone", None)
    resumed = await schedules.change(db, 1, made.schedule_id, schedules.resumed)
    assert resumed is not None
    assert (resumed.paused_why, resumed.paused_at) == (None, None)
