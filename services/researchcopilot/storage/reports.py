"""Reports: what a period of a workspace has come to, and the report of it, stored once.

A period starts where the one before has ended. Two unique keys, of its start and of its end, keep
every moment out of a second report, whoever writes at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from researchcopilot.core.errors import NotFound
from researchcopilot.core.ids import new_id
from researchcopilot.core.text import dumps
from researchcopilot.storage.db import Database
from researchcopilot.storage.sql import load

_SQL = load("reports")
MOST = {"slowest": 5, "failures": 10, "documents": 20, "digests": 50, "questions": 2_000}


@dataclass(frozen=True, slots=True)
class Clock:
    """What time it is, where, and up to when there is a report."""

    now: datetime
    workspace: str
    zone: str
    last_report_id: str | None
    last_end: datetime | None
    last_language: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """`period_end` is exclusive. `markdown` and `data` are None in lists."""

    report_id: str
    run_id: str
    period_start: datetime
    period_end: datetime
    zone: str
    language: str
    title: str
    created_at: datetime
    markdown: str | None = None
    data: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A report as it was written."""

    language: str
    title: str
    markdown: str


async def clock(db: Database, workspace_id: int) -> Clock:
    row = await db.one(_SQL["clock"], {"workspace_id": workspace_id})
    if row is None:
        raise NotFound(f"There is no workspace {workspace_id}.")
    return Clock(
        row["now"], row["name"], row["zone"], row["report_id"], row["period_end"], row["language"]
    )


async def facts(
    db: Database, workspace_id: int, start: datetime, end: datetime
) -> tuple[dict[str, Any], list[str]]:
    """What has come of the period, as plain JSON; and the questions that were asked in it."""
    period = {"workspace_id": workspace_id, "start": start, "end": end}

    async def read(name: str) -> list[dict[str, Any]]:
        rows = await db.dicts(_SQL[name], {**period, "limit": MOST.get(name)})
        return [{key: _plain(value) for key, value in row.items()} for row in rows]

    agents = await read("agents")
    [totals] = await read("totals")
    documents, digests = await read("documents"), await read("digests")
    found = {
        "runs": {
            "accepted": totals["accepted"],
            **{
                status: sum(agent[status] for agent in agents)
                for status in ("succeeded", "failed", "cancelled")
            },
            "open": totals["open"],
            "median_s": totals["median_s"],
        },
        "agents": agents,
        "slowest": await read("slowest"),
        "failures": await read("failures"),
        "documents": _counted(documents),
        "digests": _counted([{"total": d["total"], **_digest(d)} for d in digests]),
        "upkeep": await read("upkeep"),
    }
    questions = [row["question"] for row in await read("questions") if row["question"]]
    return found, questions


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return round(value, 3) if isinstance(value, float) else value


def _counted(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many there are, and the first of them."""
    total = rows[0]["total"] if rows else 0
    return {"count": total, "items": [_without(row, "total") for row in rows]}


def _without(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


def _digest(row: Mapping[str, Any]) -> dict[str, Any]:
    wanted = ("question", "conclusion", "sources", "duration_s", "agent")
    found = {key: row["payload"].get(key) for key in wanted}
    return {"run_id": row["run_id"], "times": row["times"], **found}


async def store(
    db: Database,
    workspace_id: int,
    run_id: str,
    period: tuple[datetime, datetime, str],
    page: Page,
    data: Mapping[str, Any],
) -> tuple[str, bool]:
    """The id of the report that stands there now, and whether this run has written it.

    `period`: start, end, zone. Whoever is first is kept; the same run twice is the same report.
    """
    start, end, zone = period
    params = {
        "report_id": new_id(),
        "workspace_id": workspace_id,
        "run_id": run_id,
        "start": start,
        "end": end,
        "zone": zone,
        "language": page.language,
        "title": page.title,
        "markdown": page.markdown,
        "data": dumps(data),
    }
    await db.execute(_SQL["store"], params)
    row = await db.one(_SQL["standing"], params)
    assert row is not None, "either ours or the one that kept it out"
    return row["report_id"], row["run_id"] == run_id


async def list_reports(
    db: Database, workspace_id: int, *, before: datetime | None, limit: int
) -> list[Report]:
    """The latest period first, those that ended before that moment."""
    params = {"workspace_id": workspace_id, "before": before, "limit": limit}
    return [Report(**row) for row in await db.dicts(_SQL["list"], params)]


async def get_report(db: Database, workspace_id: int, report_id: str) -> Report | None:
    params = {"workspace_id": workspace_id, "report_id": report_id}
    row = await db.one(_SQL["get"], params)
    return None if row is None else Report(**row)
