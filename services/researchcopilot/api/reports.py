"""Reports: what a workspace did in a period, as JSON, and as the page it was written for.

GET /v1/reports/{id} with `Accept: text/markdown` gives the page alone.
"""

import re
from datetime import datetime
from typing import Any

from starlette.responses import Response

from researchcopilot.api import cursors
from researchcopilot.api.operations import Answer, Call, Operation, Param
from researchcopilot.api.problems import Problem
from researchcopilot.api.render import json_response, moment
from researchcopilot.api.runs import CURSOR, LIMIT, page_response
from researchcopilot.api.views import Shown, View, text, time, uuid
from researchcopilot.core.schemas import Id, Schema
from researchcopilot.storage import reports as stored
from researchcopilot.storage.reports import Report

MARKDOWN = "text/markdown"
_JSON = "application/json"
_QUALITY = re.compile(r"q=(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)")

_LINKS: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"self": text(), "run": text("what wrote it, as long as runs are kept")},
    "required": ["self", "run"],
}


def _links(report: Report) -> dict[str, str]:
    return {"self": f"/v1/reports/{report.report_id}", "run": f"/v1/runs/{report.run_id}"}


_SHOWN: tuple[Shown[Report], ...] = (
    Shown("report_id", uuid(), lambda report: report.report_id),
    Shown("run_id", uuid("the run that wrote it"), lambda report: report.run_id),
    Shown("title", text(), lambda report: report.title),
    Shown("language", text(enum=["zh", "en"]), lambda report: report.language),
    Shown("period_start", time(), lambda report: moment(report.period_start)),
    Shown("period_end", time("exclusive"), lambda report: moment(report.period_end)),
    Shown("zone", text("in which its days are counted"), lambda report: report.zone),
    Shown("created_at", time(), lambda report: moment(report.created_at)),
    Shown("links", _LINKS, _links),
)
REPORT: View[Report] = View("Report", "A report, without its page", _SHOWN)
FULL_REPORT: View[Report] = View(
    "FullReport",
    "A report with its page and the figures behind it",
    (
        *_SHOWN,
        Shown("markdown", text("the page"), lambda report: report.markdown),
        Shown(
            "data",
            {"type": "object", "description": "what the page is made of"},
            lambda report: report.data,
        ),
    ),
)


async def list_reports(call: Call) -> Response:
    """A page of reports, the latest period first."""
    limit = call.query["limit"]
    before = cursors.decode("reports", call.query["cursor"], _position)
    found = await stored.list_reports(
        call.services.db, call.workspace_id, before=before, limit=limit + 1
    )
    page = found[:limit]
    cursor = None
    if len(found) > limit:
        cursor = cursors.encode("reports", page[-1].period_end.isoformat())
    return page_response(call, [REPORT(report) for report in page], cursor)


def _position(values: list[Any]) -> datetime:
    found = datetime.fromisoformat(values[0])
    if found.tzinfo is None:
        raise ValueError("not a position")
    return found


async def get_report(call: Call) -> Response:
    """One report: JSON, or its Markdown where the client would rather have that."""
    report_id = call.path["report_id"]
    report = await stored.get_report(call.services.db, call.workspace_id, report_id)
    if report is None:
        raise Problem("not_found", "There is no such report in this workspace.")
    headers = {"Vary": "Accept"}
    if prefers_markdown(call.header(b"accept")):
        return Response(report.markdown, 200, headers, MARKDOWN)
    return json_response(FULL_REPORT(report), 200, headers)


def prefers_markdown(accept: str | None) -> bool:
    """Does Accept (RFC 9110) want Markdown more than JSON? JSON where it says nothing of them."""
    ranges: dict[str, float] = {}
    for part in (accept or "").lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        found = [match for piece in parameters if (match := _QUALITY.fullmatch(piece))]
        ranges[name] = float(found[0][1]) if found else 1.0

    def quality(kind: str) -> float:
        family = kind.partition("/")[0] + "/*"
        return next((ranges[name] for name in (kind, family, "*/*") if name in ranges), 0.0)

    return quality(MARKDOWN) > quality(_JSON)


OPERATIONS = (
    Operation(
        "GET",
        "/v1/reports",
        list_reports,
        "Reports, the latest period first, without their pages.",
        {200: Answer("A page", "ReportPage", ("Link",))},
        query=(LIMIT, CURSOR),
        problems=(422, 503),
    ),
    Operation(
        "GET",
        "/v1/reports/{report_id}",
        get_report,
        "One report; with `Accept: text/markdown` its page alone.",
        {200: Answer("The report", "FullReport", ("Vary",), {MARKDOWN: text()})},
        params=(Param("report_id", Id(), "a report of this workspace"),),
        problems=(404, 422, 503),
    ),
)
