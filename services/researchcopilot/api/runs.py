"""Reading runs: one, held until it has ended if asked for, and lists."""

import asyncio
import hashlib
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

from starlette.responses import Response
from starlette.types import Receive

from researchcopilot.api import cursors, views
from researchcopilot.api.operations import Answer, Call, Operation, Param
from researchcopilot.api.problems import ClientGone, Problem
from researchcopilot.api.render import dump, json_response
from researchcopilot.api.submit import retry_after
from researchcopilot.core.ids import parse_id
from researchcopilot.core.models import Run
from researchcopilot.core.schemas import Choice, Id, Moment, Number, Text, Whole
from researchcopilot.core.states import TERMINAL, Status
from researchcopilot.storage import runs as stored
from researchcopilot.storage.runs import RunFilter

LIMIT = Param("limit", Whole(1, 200), "items of a page", 50)
CURSOR = Param("cursor", Text(1, 1000), "next_cursor of the page before")
RUN_ID = Param("run_id", Id(), "a run of this workspace")


async def get_run(call: Call) -> Response:
    """One run. With `wait`, the answer comes once it has ended or the seconds are over."""
    run = await _load(call)
    if call.query["wait"] and run.status not in TERMINAL:
        await _hold(call, run.run_id, call.query["wait"])
        run = await _load(call)
    body = dump(views.FULL_RUN(run))
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if run.status not in TERMINAL:
        headers["Retry-After"] = str(retry_after(run))
    if _matches(call.header(b"if-none-match"), tag):
        return Response(None, 304, headers)
    return Response(body, 200, headers, "application/json")


async def _load(call: Call) -> Run:
    run = await call.services.read_run(call.workspace_id, call.path["run_id"])
    if run is None:
        raise Problem("not_found", "There is no such run in this workspace.")
    return run


async def _hold(call: Call, run_id: str, seconds: float) -> None:
    """Until the run has ended, the time is over, or the client has hung up."""
    with call.services.watcher.watch(run_id) as ended:
        gone = asyncio.create_task(_disconnected(call.receive))
        try:
            await asyncio.wait((ended, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise ClientGone
        finally:
            gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _matches(if_none_match: str | None, tag: str) -> bool:
    if if_none_match is None:
        return False
    tags = {part.strip().removeprefix("W/") for part in if_none_match.split(",")}
    return tag in tags or "*" in tags


async def list_runs(call: Call) -> Response:
    """A page of runs, newest first."""
    query = dict(call.query)
    limit = query.pop("limit")
    before = cursors.decode("runs", query.pop("cursor"), _position)
    found = await stored.list_runs(
        call.services.db, call.workspace_id, RunFilter(**query), before=before, limit=limit + 1
    )
    page = found[:limit]
    cursor = None
    if len(found) > limit:
        cursor = cursors.encode("runs", page[-1].created_at.isoformat(), page[-1].run_id)
    return page_response(call, [views.RUN(run) for run in page], cursor)


def _position(values: list[Any]) -> tuple[datetime, str]:
    created_at, run_id = datetime.fromisoformat(values[0]), parse_id(values[1])
    if created_at.tzinfo is None or run_id is None:
        raise ValueError("not a position")
    return created_at, run_id


def page_response(call: Call, data: list[dict[str, Any]], cursor: str | None) -> Response:
    """{"data", "next_cursor"}, and the Link that RFC 8288 readers follow."""
    headers = {}
    if cursor is not None:
        query = dict(parse_qsl(call.scope["query_string"].decode("ascii")))
        headers["Link"] = cursors.next_link(call.scope["path"], query, cursor)
    return json_response({"data": data, "next_cursor": cursor}, 200, headers)


OPERATIONS = (
    Operation(
        "GET",
        "/v1/runs/{run_id}",
        get_run,
        "One run, with its input and result. `wait` holds the answer until the run has ended.",
        {
            200: Answer("The run as it stands", "FullRun", ("ETag", "Retry-After")),
            304: Answer("It is as If-None-Match says"),
        },
        params=(RUN_ID,),
        query=(Param("wait", Number(0, 60), "seconds to wait for the end", 0.0),),
        headers=("If-None-Match",),
        problems=(404, 422, 503),
        aliases=("/runs/{run_id}",),
    ),
    Operation(
        "GET",
        "/v1/runs",
        list_runs,
        "Runs, newest first, without input and result.",
        {200: Answer("A page", "RunPage", ("Link",))},
        query=(
            Param("status", Choice(tuple(status.value for status in Status)), "in this status"),
            Param("agent", Text(1, 200), "of this agent"),
            Param("queue", Text(1, 200), "of this queue"),
            Param("session_id", Id(), "of this session"),
            Param("created_after", Moment(), "created later than this"),
            Param("created_before", Moment(), "created earlier than this"),
            LIMIT,
            CURSOR,
        ),
        problems=(422, 503),
        aliases=("/runs",),
    ),
)
