"""Accepting runs: 202 once the rows are committed, whatever becomes of Redis.

Checked first: what the body says, then what workers have registered, then the clock. The last two
can change between a request and its repetition, so a repetition is looked up before it is refused
by them: who was told 202 once is told 202 again.
"""

import math
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from starlette.responses import Response

from researchcopilot.api import idempotency, views
from researchcopilot.api.bodies import Body, Field, ListOf
from researchcopilot.api.inputs import check_input
from researchcopilot.api.operations import Answer, Call, Operation, Param
from researchcopilot.api.problems import Fault, Problem, refuse
from researchcopilot.api.render import json_response
from researchcopilot.api.schemas import Choice, Id, Json, Moment, Number, Pairs, Text, Whole
from researchcopilot.core.errors import Unavailable
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import NewRun, Run, Submission, Submitted
from researchcopilot.core.states import Status
from researchcopilot.core.text import dumps
from researchcopilot.storage.runs import accepted_before, get_runs

YEAR_S = 365 * 86_400
MOST_RUNS = 1000

_FIELDS = (
    Field("input", Json(32), "what the agent is asked; JSON, for `research` a question", True),
    Field("agent", Text(1, 200), "one of GET /v1/agents", default="research"),
    Field("metadata", Pairs(16, 64, 512), "kept with the run and given to the agent"),
    Field("queue", Text(1, 200), "where it waits; the agent's queue unless given"),
    Field(
        "on_conflict",
        Choice(("queue", "reject", "parallel", "cancel_previous")),
        "when its session has a run already: wait for its turn, be refused (409), run beside it, "
        "or cancel what has not ended",
        default="queue",
    ),
    Field("max_attempts", Whole(1, 100), "a failing run is tried so often; the agent's own"),
    Field("timeout_s", Number(0.1, 604_800), "one attempt may take so many seconds"),
    Field("deadline", Moment(), "it fails if it has not ended by then; a day after it is due"),
    Field("run_at", Moment(), "not before; at most a year ahead"),
    Field("delay_s", Number(0, YEAR_S), "instead of run_at: not before so many seconds"),
)
_SESSION = Field("session_id", Id(), "the conversation; a new one unless given")

NEW_RUN = Body("NewRun", (*_FIELDS, _SESSION))
NEW_RUN_IN_SESSION = Body("NewRunInSession", _FIELDS)
NEW_RUNS = Body(
    "NewRuns", (Field("runs", ListOf(NEW_RUN, 1, MOST_RUNS), "all are accepted or none", True),)
)


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
    new = [await _new_run(call, item, faults) for item in wanted]
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


async def _new_run(call: Call, wanted: Wanted, faults: list[Fault]) -> NewRun:
    fields, session_id, where = wanted
    check_size(call, fields["input"], f"{where}.input", faults)
    _check_times(fields, where, faults)
    catalogue = call.services.catalogue
    agent = await catalogue.agent(fields["agent"], f"{where}.agent", faults)
    if agent is not None:
        await check_input(fields["input"], agent, f"{where}.input", faults)
    queue = fields["queue"]
    if queue is not None:
        await catalogue.queue(queue, f"{where}.queue", faults)
    else:
        queue = agent.queue if agent else ""  # then there is a fault
    return NewRun(
        run_id=new_id(),
        workspace_id=call.workspace_id,
        agent=fields["agent"],
        queue=queue,
        input=fields["input"],
        session_id=session_id or new_id(),
        serial=fields["on_conflict"] != "parallel",
        on_conflict=fields["on_conflict"],
        metadata=fields["metadata"] or {},
        max_attempts=fields["max_attempts"] or (agent.max_attempts if agent else 1),
        timeout_s=fields["timeout_s"],
        deadline=fields["deadline"],
        run_at=fields["run_at"],
        delay_s=fields["delay_s"],
    )


def check_size(call: Call, value: Any, where: str, faults: list[Fault]) -> None:
    limit = call.services.settings.max_input_bytes
    if isinstance(value, str) and len(value) * 6 < limit:
        return  # cannot be longer, however it is escaped
    size = len(dumps(value).encode())
    if size > limit:
        message = f"must have at most {limit} bytes as JSON; it has {size}"
        faults.append(Fault(where, message, "too_large"))


def _check_times(fields: dict[str, Any], where: str, faults: list[Fault]) -> None:
    run_at, delay_s, deadline = fields["run_at"], fields["delay_s"], fields["deadline"]
    if run_at is None and delay_s is None and deadline is None:
        return
    # The clock of this process only refuses what is plainly wrong; what is due when is decided
    # by the database.
    now = datetime.now(UTC)
    if run_at is not None and delay_s is not None:
        faults.append(Fault(f"{where}.delay_s", "and run_at exclude each other: send one of them"))
    if run_at is not None and run_at > now + timedelta(seconds=YEAR_S):
        faults.append(Fault(f"{where}.run_at", "must be at most a year (365 days) ahead"))
    if deadline is None:
        return
    due = max(now, run_at or now + timedelta(seconds=delay_s or 0))
    if deadline <= due:
        words = "must be later than the run is due" if due > now else "must be in the future"
        faults.append(Fault(f"{where}.deadline", words))
    elif deadline > now + timedelta(seconds=2 * YEAR_S):
        faults.append(Fault(f"{where}.deadline", "must be at most two years (730 days) ahead"))


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
