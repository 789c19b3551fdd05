"""daily_report: once for each period, over a missed day, in the workspace's zone, at 08:00."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from tests.conftest import Parts
from tests.services.claimed import claim, context, new_context
from tests.services.claimed import finish as end
from tests.services.research_corpus import ask, indexed, researching
from tests.support import ended, eventually, new_run, submit

from researchcopilot.agents.daily_report import daily_report
from researchcopilot.core.errors import BadAgentInput, BadInput, NotFound
from researchcopilot.core.schedules import SYSTEM
from researchcopilot.core.settings import Settings
from researchcopilot.core.text import dumps
from researchcopilot.storage import keys, reports, schedules, workspaces
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.reports import Report

pytestmark = pytest.mark.anyio
SHANGHAI = ZoneInfo("Asia/Shanghai")
# A day must not end while it is reported on. Neither of the two changes its clocks.
ZONE = SHANGHAI if datetime.now(SHANGHAI).hour < 23 else ZoneInfo("Asia/Karachi")


def midnight(days_ago: int) -> datetime:
    """The beginning of a day in the zone."""
    today = datetime.now(ZONE).replace(hour=0, minute=0, second=0, microsecond=0)
    return today - timedelta(days=days_ago)


async def made(db: Database, workspace_id: int = 1) -> list[Report]:
    """The reports that there are, whole, the oldest first."""
    listed = await reports.list_reports(db, workspace_id, before=None, limit=99)
    whole = [await reports.get_report(db, workspace_id, one.report_id) for one in listed]
    return [report for report in reversed(whole) if report is not None]


async def report(db: Database, queue: Queue, cache: Path, given: Any = None) -> dict[str, Any]:
    """Run the job; its result."""
    ctx = await new_context(db, queue, cache, "daily_report", given or {})
    return await daily_report(ctx, given or {})


async def ended_at(
    db: Database, moment: datetime, status: str = "succeeded", *, question: str = "锁", **more: Any
) -> None:
    """A run of a person that ended then, after two seconds of work."""
    error = '{"type": "timed_out", "message": "it took too long: 17 s"}'
    fields = {
        "agent": "research", "queue": "runs", "status": status, "input": question,
        "result": "{}" if status == "succeeded" else None,
        "error": error if status == "failed" else None,
        "started_at": moment - timedelta(seconds=2), "finished_at": moment,
        "created_at": moment - timedelta(seconds=3), **more,
    }  # fmt: skip
    await db.execute(
        b"INSERT INTO runs (run_id, workspace_id, agent, queue, serial, status, run_at, ready_at,"
        b" deadline, claim_no, attempts, max_attempts, input, result, error, created_at,"
        b" started_at, finished_at)"
        b" VALUES (gen_random_uuid(), 1, %(agent)s, %(queue)s, false, %(status)s, %(created_at)s,"
        b" %(created_at)s, %(created_at)s, 1, 1, 3, to_jsonb(%(input)s::text), %(result)s::jsonb,"
        b" %(error)s::jsonb, %(created_at)s, %(started_at)s, %(finished_at)s)",
        fields,
    )


async def in_the_zone(db: Database) -> None:
    await workspaces.set_zone(db, "default", ZONE.key)


async def test_it_counts_what_ended_on_the_day_before(
    db: Database, queue: Queue, tmp_path: Path
) -> None:
    """Protects: first and last moment of the day in the zone; statuses; failures by fingerprint;
    upkeep apart; and that a day is reported once, also by two at once."""
    await in_the_zone(db)
    start, finish = midnight(1), midnight(0)
    await ended_at(db, start - timedelta(microseconds=1))  # the day before
    await ended_at(db, finish)  # today
    await ended_at(db, start)
    await ended_at(db, finish - timedelta(microseconds=1), question="RAG 的召回率怎么评")
    for seconds in (1, 2):
        await ended_at(db, start + timedelta(hours=seconds), "failed", question="Why?")
    await ended_at(db, start + timedelta(hours=3), "cancelled")
    slow = start + timedelta(hours=5)
    await ended_at(db, slow, question="慢", started_at=slow - timedelta(minutes=4))
    await ended_at(db, start, agent="rebuild_index", queue="system")
    await db.execute(
        b"INSERT INTO documents (document_id, workspace_id, name, title, media_type, sha256, body,"
        b" bytes, created_at) SELECT gen_random_uuid(), 1, n || '.md', 'T' || n, 'text/markdown',"
        b" repeat(n::text, 64), 'x', 1, %(t)s::timestamptz + n * interval '1 day'"
        b" FROM generate_series(0, 2) n",
        {"t": start - timedelta(hours=12)},
    )
    done = await asyncio.gather(*(report(db, queue, tmp_path) for _ in range(3)))
    assert sorted(one["made"] for one in done) == [False, False, True]
    [written] = await made(db)
    assert {one["report_id"] for one in done} == {written.report_id}
    assert (written.period_start, written.period_end) == (start, finish)
    assert (written.zone, written.language) == (ZONE.key, "zh")
    assert written.data is not None
    found = written.data
    runs = {key: found["runs"][key] for key in ("succeeded", "failed", "cancelled", "median_s")}
    assert runs == {"succeeded": 3, "failed": 2, "cancelled": 1, "median_s": 2.0}
    assert found["slowest"][0]["question"] == "慢"
    [failure] = found["failures"]
    assert (failure["count"], failure["open"], failure["type"]) == (2, 2, "timed_out")
    assert failure["fingerprint"]
    assert found["upkeep"] == [{"agent": "rebuild_index", "succeeded": 1, "failed": 0}]
    assert [item["name"] for item in found["documents"]["items"]] == ["1.md"]
    day = f"{start.year}年{start.month}月{start.day}日"
    assert written.markdown is not None
    assert written.markdown.startswith(f"# 日报：{day}（星期")
    assert "**3 个运行成功，2 个失败，1 个取消。**" in written.markdown


async def test_the_next_report_covers_a_missed_day(
    db: Database, queue: Queue, tmp_path: Path
) -> None:
    """Protects: a day without a report is in the next one, and each run is in just one."""
    await in_the_zone(db)
    for days_ago in (4, 3, 2, 1):
        await ended_at(db, midnight(days_ago) + timedelta(hours=12), question="What is a lock?")
    ctx = await new_context(db, queue, tmp_path, "daily_report", {})
    await reports.store(
        db, 1, ctx.run.run_id, (midnight(5), midnight(3), ZONE.key),
        reports.Page("en", "old", "# old\n"), {},
    )  # fmt: skip
    assert (await daily_report(ctx, {}))["made"]
    old, new = await made(db)
    assert (new.period_start, new.period_end) == (old.period_end, midnight(0))
    assert new.data is not None
    assert new.data["runs"]["succeeded"] == 3
    assert new.markdown is not None
    assert "It also covers 2 days before, which had no report." in new.markdown
    again = await report(db, queue, tmp_path)
    assert again == {"report_id": new.report_id, "made": False, "title": None}


async def test_until_now_and_then_the_rest(db: Database, queue: Queue, tmp_path: Path) -> None:
    """Protects: somebody may ask at any time, and no moment is reported twice or left out."""
    await ended_at(db, datetime.now(UTC) - timedelta(seconds=1))
    first = await report(db, queue, tmp_path, {"until": "now"})
    await ended_at(db, datetime.now(UTC))
    second = await report(db, queue, tmp_path, {"until": "now"})
    one, two = await made(db)
    assert (first["report_id"], second["report_id"]) == (one.report_id, two.report_id)
    assert one.period_end == two.period_start
    assert [report.data and report.data["runs"]["succeeded"] for report in (one, two)] == [1, 1]
    assert (await report(db, queue, tmp_path))["made"] is False
    with pytest.raises(BadAgentInput, match="until"):
        await report(db, queue, tmp_path, {"until": "tomorrow"})


async def test_a_retried_report_keeps_its_period(
    db: Database, queue: Queue, tmp_path: Path
) -> None:
    """Protects: a worker that dies over it, before or after it is stored, doubles nothing."""
    ctx = await new_context(db, queue, tmp_path, "daily_report", {"until": "now"})
    first = await daily_report(ctx, {"until": "now"})
    await end(db, ctx.run, "release")
    again = context(await claim(db, ctx.run.run_id), db, queue, tmp_path)
    assert await daily_report(again, {"until": "now"}) == first
    assert len(await made(db)) == 1


async def test_the_digests_of_the_day_are_on_the_page(
    db: Database, queue: Queue, settings: Settings
) -> None:
    """Protects: from a question to the manager's page, through a real worker; English when the
    questions were; reports of another workspace are its own."""
    await keys.create(db, workspace="other", name="x")
    async with researching(settings, db, queue):
        await indexed(db, queue)
        run = await ask(db, queue, "What does the GIL let threads do?")

        async def digested() -> bool:
            rows = await db.rows(b"SELECT status FROM runs WHERE follows IS NOT NULL")
            return rows == [("succeeded",)]

        await eventually(digested)
        job = new_run(agent="daily_report", queue="system", input={"until": "now"})
        await submit(db, queue, job)
        done = await ended(db, job.run_id)
    assert done["result"]["made"] is True
    [written] = await made(db)
    assert written.run_id == job.run_id
    assert written.markdown is not None
    page = written.markdown
    assert "### What does the GIL let threads do?\n\n- The GIL lets one thread run" in page
    assert "*from The GIL · " in page
    assert f"run `{run['run_id']}`*" in page
    assert "**1 run succeeded.** 3 documents came in." in page
    assert await made(db, 2) == []
    assert await reports.get_report(db, 2, written.report_id) is None


async def test_a_question_of_each_minute_hides_no_other(
    db: Database, queue: Queue, tmp_path: Path
) -> None:
    """Protects: what a schedule asks all day stands there once, with its number and its newest
    answer; what was asked after it stands there too."""
    await in_the_zone(db)
    for number in range(70):
        await digested_at(db, midnight(1) + timedelta(minutes=number), "Any news?", f"No, {number}")
        slow = midnight(1) + timedelta(minutes=number)
        await ended_at(db, slow, question="Any news?", started_at=slow - timedelta(seconds=60))
    await digested_at(db, midnight(1) + timedelta(hours=9), "Why is it slow?", "Nobody knows")
    await ended_at(db, midnight(1), question="Why is it slow?")
    await report(db, queue, tmp_path)
    [written] = await made(db)
    assert written.markdown is not None
    assert written.data is not None
    assert "### Any news? (×70)\n\n- No, 69\n" in written.markdown
    assert "### Why is it slow?\n\n- Nobody knows\n" in written.markdown
    assert written.data["digests"]["count"] == 71
    assert [one["times"] for one in written.data["digests"]["items"]] == [70, 1]
    slowest = [(one["question"], one["seconds"]) for one in written.data["slowest"]]
    assert slowest == [("Any news?", 60.0), ("Why is it slow?", 2.0)]


async def digested_at(db: Database, moment: datetime, question: str, conclusion: str) -> None:
    payload = dumps({"question": question, "conclusion": conclusion, "agent": "research"})
    await db.execute(
        b"WITH s AS (INSERT INTO sessions (session_id, workspace_id, title)"
        b" VALUES (gen_random_uuid(), 1, '') RETURNING session_id)"
        b" INSERT INTO messages (workspace_id, session_id, run_id, role, payload, created_at)"
        b" SELECT 1, session_id, gen_random_uuid(), 'digest', %(p)s::jsonb, %(t)s FROM s",
        {"p": payload, "t": moment},
    )


# The schedules of the product


async def test_every_workspace_has_the_products_schedules(
    db: Database, queue: Queue, parts: Parts
) -> None:
    """Protects: rebuild_index each 5 minutes and daily_report at 08:00 of the workspace, visible
    and pausable; made by the scheduler when it starts, once."""
    await in_the_zone(db)
    parts("scheduler")
    parts("scheduler")

    async def there() -> Any:
        found = await schedules.list_schedules(db, 1, after=None, limit=9)
        return found if len(found) == len(SYSTEM) else None

    report, rebuild = await eventually(there)
    assert (rebuild.name, rebuild.agent, rebuild.interval_s) == (
        "rebuild_index", "rebuild_index", 300.0,
    )  # fmt: skip
    assert rebuild.unique_key == "rebuild_index"
    assert (report.name, report.agent, report.cron) == ("daily_report", "daily_report", "0 8 * * *")
    assert (report.timezone, report.queue, report.system) == (ZONE.key, "system", True)
    assert report.next_tick.astimezone(ZONE).strftime("%H:%M") == "08:00"
    paused = await schedules.change(db, 1, report.schedule_id, schedules.paused)
    assert paused is not None
    assert paused.next_tick is None


async def test_the_report_moves_with_the_workspaces_zone(db: Database) -> None:
    """Protects: a new zone moves the hour of the report, and no other schedule; a paused one stays
    paused; twice is once."""
    await schedules.ensure_system(db, SYSTEM)
    before = {one.name: one for one in await schedules.list_schedules(db, 1, after=None, limit=9)}
    assert before["daily_report"].timezone == "UTC"
    for _ in range(2):
        moved = await workspaces.set_zone(db, "default", "Asia/Shanghai")
        assert (moved.name, moved.zone) == ("default", "Asia/Shanghai")
        listed = await schedules.list_schedules(db, 1, after=None, limit=9)
        after = {one.name: one for one in listed}
        tick = after["daily_report"].next_tick
        assert tick is not None
        assert (tick.hour, after["daily_report"].timezone) == (0, "Asia/Shanghai")
        assert after["rebuild_index"] == before["rebuild_index"]
    await schedules.change(db, 1, after["daily_report"].schedule_id, schedules.paused)
    await workspaces.set_zone(db, "default", "Europe/Berlin")
    [found] = [
        one
        for one in await schedules.list_schedules(db, 1, after=None, limit=9)
        if one.name == "daily_report"
    ]
    assert (found.timezone, found.next_tick, found.paused_at is None) == (
        "Europe/Berlin", None, False,
    )  # fmt: skip
    with pytest.raises(BadInput, match="Asia/Shanghai"):
        await workspaces.set_zone(db, "default", "Asia/Shanghia")
    with pytest.raises(NotFound, match="keys create"):
        await workspaces.set_zone(db, "nobody", "UTC")
