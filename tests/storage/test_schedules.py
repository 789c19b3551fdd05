"""Ticks, one move at a time: what fires, what is skipped and why, and that a plan which is sent
twice, late, too early, or by two does nothing more."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.storage.scheduled import (
    WORKER,
    back,
    current,
    end_runs,
    fire,
    history,
    make,
    planned,
    runs_of,
)

from researchcopilot.core.errors import BadInput
from researchcopilot.core.models import AgentInfo, WorkerInfo
from researchcopilot.core.schedules import plan
from researchcopilot.core.text import dumps
from researchcopilot.storage import schedules, workers
from researchcopilot.storage.db import Database

pytestmark = pytest.mark.anyio
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


# Firing


async def test_a_tick_is_a_run_in_the_schedules_session(db: Database) -> None:
    """Protects: what the run is, where it goes, and what its agent is told of the tick."""
    made = await make(
        db, name="morning news", input={"question": "why?"}, metadata={"team": "x"},
        timeout_s=5.0, deadline_s=600.0,
    )  # fmt: skip
    due = await back(db, made, 3600)
    assert due.next_tick is not None
    [fired] = await fire(db)
    assert (fired.outcome, fired.tick) == ("fired", due.next_tick)
    [run] = await runs_of(db, made)
    assert fired.push is not None
    assert (fired.push.entry.run_id, fired.push.queue) == (run["run_id"], "runs")
    assert (run["session_id"], run["serial"], run["status"]) == (made.session_id, False, "queued")
    assert (run["run_at"], run["max_attempts"], run["timeout_s"]) == (due.next_tick, 3, 5.0)
    assert run["ready_at"] >= run["run_at"]
    assert run["deadline"] - run["ready_at"] == timedelta(seconds=600)
    assert run["metadata"] == {
        "team": "x", "schedule": "morning news", "schedule_id": made.schedule_id,
        "tick": due.next_tick.isoformat().replace("+00:00", "Z"),
    }  # fmt: skip
    [said] = await db.rows(b"SELECT role, payload FROM messages")
    assert said == ("user", {"content": {"question": "why?"}})
    [(title,)] = await db.rows(b"SELECT title FROM sessions")
    assert title == "morning news"
    after = await current(db, made)
    assert after.next_tick == due.next_tick + timedelta(hours=1)
    assert await fire(db) == []


async def test_what_is_not_given_is_the_agents(db: Database) -> None:
    """Protects: queue and attempts are those that the agent has when it fires."""
    info = AgentInfo("weekly", "1", "slow", "", None, 7)
    await workers.register(db, WorkerInfo(WORKER, {"slow": 1}, (info,), "test", 1, "0"))
    made = await make(db, agent="weekly")
    await back(db, made, 3600)
    await fire(db)
    [run] = await runs_of(db, made)
    assert (run["queue"], run["max_attempts"]) == ("slow", 7)


async def test_sending_a_plan_twice_changes_nothing_and_pushes_again(db: Database) -> None:
    """Protects: a commit whose answer was lost: the same run is pushed, none is made."""
    made = await make(db)
    await back(db, made, 3600)
    plans = await planned(db)
    sent = schedules._plan(plans[0])
    first = await db.rows(schedules._SQL["fire"], {"plans": dumps([sent])})
    again = await db.rows(schedules._SQL["fire"], {"plans": dumps([sent])})
    assert [row[:6] for row in first] == [row[:6] for row in again]
    assert len(await runs_of(db, made)) == 1


async def test_two_schedulers_with_one_plan_fire_once(db: Database) -> None:
    """Protects: no lock is needed for that, only the row."""
    made = [await make(db) for _ in range(20)]
    for one in made:
        await back(db, one, 3600)
    plans = await planned(db)
    answers = await asyncio.gather(*(fire(db, plans) for _ in range(4)))
    assert sorted(fired.schedule_id for answer in answers for fired in answer) == sorted(
        one.schedule_id for one in made
    )
    for one in made:
        assert len(await runs_of(db, one)) == 1


async def test_the_unique_key_holds_when_everything_else_fails(db: Database) -> None:
    """Protects: a row that was set back (a restored backup, a person) fires no tick again."""
    made = await make(db, misfire="all", overlap="allow")
    await back(db, made, 3 * 3600)
    assert [fired.outcome for fired in await fire(db)] == ["fired"] * 3
    await db.execute(b"UPDATE schedules SET next_tick = next_tick - interval '3 hours'")
    assert await fire(db) == []
    assert len(await runs_of(db, made)) == 3
    assert (await current(db, made)).next_tick == made.next_tick


async def test_no_plan_fires_before_its_time(db: Database) -> None:
    """Protects: a process whose clock is ahead plans too early; the database's time decides."""
    made = await make(db)
    assert made.next_tick is not None
    early = plan(made, made.next_tick + timedelta(minutes=1))
    assert await fire(db, [early]) == []
    assert await runs_of(db, made) == []
    assert (await current(db, made)).next_tick == made.next_tick


@pytest.mark.parametrize("change", ["paused", "changed", "deleted"])
async def test_a_plan_of_an_older_row_does_nothing(db: Database, change: str) -> None:
    """Protects: who pauses, changes or deletes a schedule is obeyed at once."""
    made = await make(db)
    await back(db, made, 3600)
    plans = await planned(db)
    if change == "paused":
        await schedules.change(db, 1, made.schedule_id, schedules.paused)
    elif change == "changed":
        await schedules.change(db, 1, made.schedule_id, lambda s, now: replace(s, input="other"))
    else:
        assert await schedules.delete(db, 1, made.schedule_id)
    assert await fire(db, plans) == []
    assert await runs_of(db, made) == []


async def test_a_plan_that_comes_late_sets_nothing_back(db: Database) -> None:
    """Protects: a scheduler that was stopped between reading and firing finds the row gone on."""
    made = await make(db, overlap="allow")
    await back(db, made, 3600)
    late = await planned(db)
    await fire(db, late)
    await back(db, made, 3601)
    await fire(db)
    before = await current(db, made)
    assert await fire(db, late) == []
    assert await current(db, made) == before
    assert len(await runs_of(db, made)) == 2


async def test_who_has_the_row_deals_with_it(db: Database) -> None:
    """Protects: a scheduler never waits for another one's row, and fires all the others."""
    first, second = await make(db), await make(db)
    for one in (first, second):
        await back(db, one, 3600)
    async with db.transaction() as connection:
        await connection.execute(
            b"SELECT 1 FROM schedules WHERE schedule_id = %(i)s FOR NO KEY UPDATE",
            {"i": first.schedule_id},
        )
        async with asyncio.timeout(3):
            assert [fired.schedule_id for fired in await fire(db)] == [second.schedule_id]
    assert [fired.schedule_id for fired in await fire(db)] == [first.schedule_id]


async def test_jitter_delays_the_run_and_not_the_tick(db: Database) -> None:
    made = await make(db, jitter_s=86_400.0)
    due = await back(db, made, 3600)
    [fired] = await fire(db)
    assert fired.tick == due.next_tick
    assert fired.push is not None
    [run] = await runs_of(db, made)
    assert timedelta(0) < run["run_at"] - fired.tick < timedelta(days=1)
    assert fired.push.delay_s > 0


# Misfire


@pytest.mark.parametrize(
    ("misfire", "outcomes"),
    [
        ("latest", ["missed"] * 4 + ["fired"]),
        ("all", ["fired"] * 5),
        ("skip", ["missed"] * 5),
    ],
)
async def test_misfire_says_what_becomes_of_what_is_late(
    db: Database, misfire: str, outcomes: list[str]
) -> None:
    """Protects: after five hours without a scheduler; every tick has its row."""
    overlap = "allow" if misfire == "all" else "skip"
    made = await make(db, misfire=misfire, overlap=overlap)
    due = await back(db, made, 5 * 3600 - 600)
    await db.execute(b"UPDATE schedules SET anchor = anchor - interval '10 minutes',"
                     b" next_tick = next_tick - interval '10 minutes'")  # fmt: skip
    await back(db, made, 120)
    await fire(db)
    assert due.next_tick is not None
    found = await history(db, made)
    assert [outcome for _, outcome in found] == outcomes
    assert len(await runs_of(db, made)) == outcomes.count("fired")
    after = (await current(db, made)).next_tick
    assert after is not None
    assert after - found[-1][0] == timedelta(hours=1)


async def test_skip_fires_what_is_late_by_seconds(db: Database) -> None:
    """Protects: a restart of the scheduler is no reason to skip a day."""
    made = await make(db, misfire="skip")
    await back(db, made, 3610)
    assert [fired.outcome for fired in await fire(db)] == ["fired"]


async def test_a_month_of_seconds_is_not_a_million_rows(db: Database) -> None:
    """Protects: the newest hundred are looked at; one row tells of all before them."""
    made = await make(db, interval_s=1.0, misfire="all", overlap="allow")
    await back(db, made, 30 * 86_400)
    started = asyncio.get_running_loop().time()
    await fire(db)
    assert asyncio.get_running_loop().time() - started < 2
    found = await schedules.list_ticks(db, 1, made.schedule_id, before=None, limit=1000)
    assert [tick.outcome for tick in found] == ["fired"] * 100 + ["missed"]
    assert found[-1].until == found[-2].tick
    assert len(await runs_of(db, made)) == 100


# Overlap


async def test_overlap_skips_while_a_run_has_not_ended(db: Database) -> None:
    """Protects: a tick that is skipped is a row too; the next one fires once the run has ended."""
    made = await make(db)
    await back(db, made, 3601)
    assert [fired.outcome for fired in await fire(db)] == ["fired"]
    await back(db, made, 3601)
    assert [fired.outcome for fired in await fire(db)] == ["overlap"]
    await end_runs(db, made)
    await back(db, made, 3601)
    assert [fired.outcome for fired in await fire(db)] == ["fired"]
    assert len(await runs_of(db, made)) == 2


async def test_overlap_allow_fires_beside_it(db: Database) -> None:
    made = await make(db, overlap="allow")
    for _ in range(3):
        await back(db, made, 3601)
        assert [fired.outcome for fired in await fire(db)] == ["fired"]
    assert [run["status"] for run in await runs_of(db, made)] == ["queued"] * 3


# Start and end


async def test_bounds_may_be_ticks(db: Database) -> None:
    """Protects: the first tick is the start itself, the last one the end, and then it is over."""
    now = await schedules.database_time(db)
    start = now.replace(microsecond=0) + timedelta(days=1)
    made = await make(db, starts_at=start, ends_at=start + timedelta(hours=1))
    assert made.next_tick == start
    await db.execute(
        b"UPDATE schedules SET starts_at = starts_at - interval '2 days',"
        b" ends_at = ends_at - interval '2 days', anchor = anchor - interval '2 days',"
        b" next_tick = next_tick - interval '2 days', misfire = 'all', overlap = 'allow'"
    )
    assert [fired.outcome for fired in await fire(db)] == ["fired", "fired"]
    assert (await current(db, made)).next_tick is None
    assert await schedules.next_wait(db) is None


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"cron": "0 0 */20 * 1L"}, "cron", "never fires"),
        ({"ends_at": LONG_AGO}, "ends_at", "is past"),
        ({"cron": "0 0 1 1 *", "ends_at": timedelta(seconds=1)}, "ends_at", "before the first"),
    ],
)
async def test_what_would_never_fire_is_refused(
    db: Database, fields: dict[str, Any], field: str, words: str
) -> None:
    if isinstance(fields.get("ends_at"), timedelta):
        fields = {**fields, "ends_at": await schedules.database_time(db) + fields["ends_at"]}
    with pytest.raises(BadInput, match=words) as caught:
        await make(db, **fields)
    assert caught.value.field == field
