"""Schedules for tests: made, set back as if time had passed, fired, looked at."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Outcome
from researchcopilot.core.schedules import Plan, Schedule, plan
from researchcopilot.storage import moves, schedules
from researchcopilot.storage.db import Database
from researchcopilot.storage.schedules import Fired

WORKER = new_id()


async def make(db: Database, **fields: Any) -> Schedule:
    """A schedule of each hour, unless told otherwise, in a session of its own."""
    if not fields.get("system"):
        fields.setdefault("session_id", new_id())
    if "cron" not in fields:
        fields.setdefault("interval_s", 3600.0)
    fields = {"name": new_id(), "agent": "echo", "input": {"q": 1}, "workspace_id": 1, **fields}
    return await schedules.create(db, Schedule(schedule_id=new_id(), **fields))


async def back(db: Database, schedule: Schedule, seconds: float) -> Schedule:
    """As if it had begun so much earlier, and nobody had looked since: all its ticks move."""
    await db.execute(
        b"UPDATE schedules SET next_tick = next_tick - make_interval(secs => %(s)s),"
        b" anchor = anchor - make_interval(secs => %(s)s) WHERE schedule_id = %(i)s",
        {"s": seconds, "i": schedule.schedule_id},
    )
    return await current(db, schedule)


async def current(db: Database, schedule: Schedule) -> Schedule:
    found = await schedules.get(db, schedule.workspace_id, schedule.schedule_id)
    assert found is not None
    return found


async def planned(db: Database) -> list[Plan]:
    now, due = await schedules.due(db, 1000)
    return [plan(schedule, now) for schedule in due] if now else []


async def fire(db: Database, plans: Sequence[Plan] | None = None) -> list[Fired]:
    return await schedules.fire(db, await planned(db) if plans is None else plans)


async def runs_of(db: Database, schedule: Schedule) -> list[dict[str, Any]]:
    return await db.dicts(
        b"SELECT * FROM runs WHERE schedule_id = %(i)s ORDER BY seq", {"i": schedule.schedule_id}
    )


async def history(db: Database, schedule: Schedule) -> list[tuple[datetime, str]]:
    found = await schedules.list_ticks(
        db, schedule.workspace_id, schedule.schedule_id, before=None, limit=1000
    )
    return [(tick.tick, tick.outcome) for tick in reversed(found)]


async def end_runs(db: Database, schedule: Schedule) -> None:
    ids = [run["run_id"] for run in await runs_of(db, schedule) if run["finished_at"] is None]
    verdicts = await moves.claim(db, ids, worker_id=WORKER, claim_id=new_id(), lease_s=60)
    outcomes = [
        Outcome(verdict.run_id, verdict.claim.claim_no, WORKER, "succeeded", '{"answer": "42"}')
        for verdict in verdicts
        if verdict.claim is not None
    ]
    await moves.finish(db, WORKER, outcomes)
