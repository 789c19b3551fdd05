"""daily_report: what a workspace did since its last report, as a page that is read in a minute.

    {}                 up to last midnight in the workspace's zone: what its schedule asks for
    {"until": "now"}   up to this moment; the next report goes on from there

The period is settled once, as a step, and stored once. A day whose report was missed is in the next
one, MOST_DAYS of them at most.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from researchcopilot.agents.contract import Context, agent
from researchcopilot.agents.report_page import headline, write
from researchcopilot.agents.research.plan import Language, language_of
from researchcopilot.core.cron import first_moment
from researchcopilot.core.errors import BadAgentInput, Permanent
from researchcopilot.storage import reports
from researchcopilot.storage.reports import Clock, Page

MOST_DAYS = 7
INPUT = {
    "type": "object",
    "properties": {"until": {"const": "now"}},
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Period:
    """`end` is exclusive; both are moments, `zone` is where the days are counted."""

    start: datetime
    end: datetime
    zone: str


@agent(
    queue="system",
    description="Reports what the workspace did since its last report.",
    input_schema=INPUT,
    max_attempts=5,
)
async def daily_report(ctx: Context, input: Any) -> dict[str, Any]:  # noqa: A002
    """Returns {"report_id", "made", "title"}; not made: the period is in that report already."""
    if input not in ({}, None, {"until": "now"}):
        raise BadAgentInput('daily_report takes {} or {"until": "now"}.')
    workspace_id = ctx.run.workspace_id

    async def settle() -> dict[str, Any]:
        clock = await reports.clock(ctx.db, workspace_id)
        found = period(clock, until_now=bool(input))
        return {
            "workspace": clock.workspace,
            "last_report_id": clock.last_report_id,
            "last_language": clock.last_language,
            "start": found and found.start.isoformat(),
            "end": found and found.end.isoformat(),
            "zone": clock.zone,
        }

    settled = await ctx.step("period", settle)
    if settled["start"] is None:
        return {"report_id": settled["last_report_id"], "made": False, "title": None}
    start, end = (datetime.fromisoformat(settled[side]) for side in ("start", "end"))
    facts, questions = await reports.facts(ctx.db, workspace_id, start, end)
    told = {key: settled[key] for key in ("workspace", "start", "end", "zone")}
    data = {"period": {**told, "is_first": settled["last_report_id"] is None}, **facts}
    language = language_for(questions, settled["last_language"])
    title = headline(data, language)
    page = Page(language, title, write(data, language))
    span = (start, end, settled["zone"])
    report_id, made = await reports.store(ctx.db, workspace_id, ctx.run.run_id, span, page, data)
    return {"report_id": report_id, "made": made, "title": title}


def period(clock: Clock, *, until_now: bool) -> Period | None:
    """Since the last report; without one since the midnight before the last. None: all of it has
    been reported."""
    try:
        zone = ZoneInfo(clock.zone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise Permanent(
            f"The workspace's zone {clock.zone!r} is not known here: set one with `researchcopilot "
            "workspaces zone`, or install tzdata."
        ) from error
    today = clock.now.astimezone(zone).date()

    def midnight(day: date) -> datetime:
        return first_moment(datetime.combine(day, time()), zone)

    end = clock.now if until_now else midnight(today)
    start = midnight(today - timedelta(days=1))
    if clock.last_end is not None:
        start = max(clock.last_end, midnight(today - timedelta(days=MOST_DAYS)))
    return Period(start, end, clock.zone) if start < end else None


def language_for(questions: Sequence[str], last: str | None) -> Language:
    """Chinese if most questions were; if there was none, or just half, as the last report."""
    chinese = sum(language_of(question) == "zh" for question in questions)
    if 2 * chinese == len(questions):
        return "zh" if last == "zh" else "en"
    return "zh" if 2 * chinese > len(questions) else "en"
