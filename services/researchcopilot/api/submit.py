"""Accepting runs: 202 once the rows are committed, whatever becomes of Redis.

Checked first: what the body says, then what workers have registered, then the clock. The last two
can change between a request and its repetition, so a repetition is looked up before it is refused
by them: who was told 202 once is told 202 again.
"""

import asyncio
import math
from datetime import UTC, datetime
from typing import Any, NamedTuple

from starlette.responses import Response

from researchcopilot.agents.new_runs import (
    MOST_RUNS,
    NEW_RUN,
    NEW_RUN_IN_SESSION,
    NEW_RUNS,
    new_run,
)
from researchcopilot.api import idempotency, views
from researchcopilot.api.operations import Answer, Call, Operation, Param
from researchcopilot.api.problems import Fault, Problem, refuse
from researchcopilot.api.render import json_response
from researchcopilot.core.errors import Unavailable
from researchcopilot.core.models import NewRun, Run, Submission, Submitted
from researchcopilot.core.schemas import Id
from researchcopilot.core.states import Status
from researchcopilot.storage.runs import accepted_before, get_runs


async def create_run(call: Call) -> Response:
    """Accept one run."""
    fields = await call.json()
    return await _accept_one(call, fields, fields["session_id"])


async def create_run_in_session(call: Call) -> Response:
    """Accept one run of a session; the session is made if there is none of this id."""
    return await _accept_one(call, await call.json(), call.path["session_id"])


async def create_runs(call: Call) -> Response:
    """Accept many runs in one commit: all of them or none."""
    items = (await call.json())["runs"]
    wanted = [
        Wanted(fields, fields["session_id"], f"$.runs[{place}]")
        for place, fields in enumerate(items)
    ]
    runs, replayed = await _accept(call, wanted)
    return json_response({"data": [views.RUN(run) for run in runs]}, 202, _headers(runs, replayed))


async def _accept_one(call: Call, fields: dict[str, Any], session_id: str | None) -> Response:
    runs, replayed = await _accept(call, [Wanted(fields, session_id, "$")])
    headers = _headers(runs, replayed)
    headers["Location"] = views.run_path(runs[0].run_id)
    return json_response(views.RUN(runs[0]), 202, headers)


def _headers(runs: list[Run], replayed: bool) -> dict[str, str]:
    headers = {"Retry-After": str(retry_after(runs[0]))}
    if replayed:
        headers["Idempotent-Replayed"] = "true"
    return headers


def retry_after(run: Run) -> int:
    """Seconds until it is worth to look again: one, or until it is due, a minute at most."""
    if run.status is not Status.QUEUED:
        return 1
    ahead = (run.run_at - datetime.now(UTC)).total_seconds()
    return max(1, min(60, math.ceil(ahead)))


class Wanted(NamedTuple):
    """A run as its body asks for it; `where` is its path in the body."""

    fields: dict[str, Any]
    session_id: str | None
    where: str


async def _accept(call: Call, wanted: list[Wanted]) -> tuple[list[Run], bool]:
    """The runs as records, and whether an earlier request had made them."""
    key = idempotency.of_call(call)
    faults: list[Fault] = []
    door = call.services.door
    new: list[NewRun] = []
    for item in wanted:
        new.append(await new_run(door, call.workspace_id, *item, faults))
        if len(wanted) > 1:
            await asyncio.sleep(0)  # others have their turn between those of a batch
    if faults:
        earlier = await accepted_before(call.services.db, key) if key else None
        if earlier is None:
            raise refuse(faults)
        return await _read(call, earlier), True
    submitted = await call.services.submitter(Submission(tuple(new), key))
    if submitted.replayed:
        return await _read(call, submitted.run_ids), True
    return _as_runs(new, submitted), False


async def _read(call: Call, run_ids: tuple[str, ...]) -> list[Run]:
    runs = await get_runs(call.services.db, call.workspace_id, run_ids)
    if len(runs) != len(run_ids):
        raise Problem(
            "idempotency_mismatch",
            "The runs that this Idempotency-Key had made were deleted meanwhile. Take a new key.",
            [Fault(idempotency.HEADER, "belongs to runs that were deleted")],
        )
    return runs


def _as_runs(new: list[NewRun], submitted: Submitted) -> list[Run]:
    """The rows that were just made, without reading them: their times came with the commit."""
    if submitted.created_at is None:
        raise Unavailable("The commit came back without its times.")
    created_at = submitted.created_at
    return [
        Run(
            run_id=run.run_id,
            workspace_id=run.workspace_id,
            session_id=run.session_id,
            agent=run.agent,
            queue=run.queue,
            status=Status.QUEUED,
            parked=False,
            input=None,
            metadata=run.metadata,
            result=None,
            error=None,
            claim_no=0,
            attempts=0,
            max_attempts=run.max_attempts,
            losses=0,
            timeout_s=run.timeout_s,
            worker_id=None,
            index_version=None,
            schedule_id=None,
            follows=None,
            replay_of=None,
            resolved_by=None,
            run_at=run_at,
            deadline=deadline,
            created_at=created_at,
            started_at=None,
            finished_at=None,
            cancel_requested_at=None,
        )
        for run, run_at, deadline in zip(new, submitted.run_at, submitted.deadline, strict=True)
    ]


_ACCEPTED_HEADERS = ("Location", "Retry-After", "Idempotent-Replayed")
_PROBLEMS = (400, 408, 413, 415, 422, 503)
_JSON = "application/json"

OPERATIONS = (
    Operation(
        "POST",
        "/v1/runs",
        create_run,
        "Submit a run. It is queued when 202 comes, and it will end.",
        {202: Answer("Accepted", "Run", _ACCEPTED_HEADERS)},
        body=NEW_RUN,
        body_types={_JSON: views.ref("NewRun")},
        headers=(idempotency.HEADER,),
        problems=_PROBLEMS,
        aliases=("/runs",),
    ),
    Operation(
        "POST",
        "/v1/sessions/{session_id}/runs",
        create_run_in_session,
        "Submit a run of a session. A session that is new is made by its first run.",
        {202: Answer("Accepted", "Run", _ACCEPTED_HEADERS)},
        body=NEW_RUN_IN_SESSION,
        body_types={_JSON: views.ref("NewRunInSession")},
        params=(Param("session_id", Id(), "the conversation"),),
        headers=(idempotency.HEADER,),
        problems=(*_PROBLEMS, 404),
        aliases=("/sessions/{session_id}/runs",),
    ),
    Operation(
        "POST",
        "/v1/runs:batch",
        create_runs,
        f"Submit 1 to {MOST_RUNS} runs in one commit: all are accepted or none.",
        {202: Answer("Accepted", "Runs", ("Retry-After", "Idempotent-Replayed"))},
        body=NEW_RUNS,
        body_types={_JSON: views.ref("NewRuns")},
        headers=(idempotency.HEADER,),
        problems=(*_PROBLEMS, 404),
    ),
)
