"""What people do to a run: cancel it, replay it, discard it; and its ledger.

Each may be sent twice: a second cancel gives the same answer, a second replay the same new run.
"""

from starlette.responses import Response

from researchcopilot.api import views
from researchcopilot.api.operations import Answer, Call, Operation
from researchcopilot.api.problems import Problem
from researchcopilot.api.render import json_response, moment
from researchcopilot.api.runs import RUN_ID
from researchcopilot.core.fields import Body, Field
from researchcopilot.core.models import Run
from researchcopilot.core.schemas import Flag
from researchcopilot.core.states import TERMINAL, Status
from researchcopilot.storage import claims, dead_letters, moves
from researchcopilot.storage.claims import ClaimRecord

REPLAY = Body(
    "Replay",
    (Field("fresh", Flag(), "true: without the steps that had finished", default=False),),
)
CLAIM: views.View[ClaimRecord] = views.View(
    "Claim",
    "One execution of a run by one worker",
    (
        views.Shown("claim_no", views.whole("grows with each claim"), lambda c: c.claim_no),
        views.Shown("worker_id", views.uuid(), lambda c: c.worker_id),
        views.Shown("host", views.maybe(views.text()), lambda c: c.host),
        views.Shown("pid", views.maybe(views.whole()), lambda c: c.pid),
        views.Shown("pod", views.maybe(views.text()), lambda c: c.pod),
        views.Shown("started_at", views.time(), lambda c: moment(c.started_at)),
        views.Shown("finished_at", views.maybe(views.time()), lambda c: moment(c.finished_at)),
        views.Shown(
            "outcome",
            views.maybe(views.text("null while it goes on")),
            lambda c: c.outcome,
        ),
        views.Shown(
            "by_worker",
            {"type": "boolean", "description": "its own worker said so, not the janitor"},
            lambda c: c.by_worker,
        ),
        views.Shown("error", views.ERROR, lambda c: c.error),
    ),
)


async def cancel_run(call: Call) -> Response:
    """Ask a run to stop: 200 once it is terminal, 202 while its worker is being told."""
    run_id = call.path["run_id"]
    done, unparked, asked = await moves.cancel(call.services.db, call.workspace_id, [run_id])
    if not done:
        raise Problem("not_found", "There is no such run in this workspace.")
    pusher = call.services.submitter.pusher
    pusher.push(unparked)
    pusher.tell(asked)
    run = await load(call, run_id)
    ended = run.status in TERMINAL
    headers = {} if ended else {"Location": views.run_path(run_id), "Retry-After": "1"}
    return json_response(views.RUN(run), 200 if ended else 202, headers)


async def replay_run(call: Call) -> Response:
    """A new run of a failed one's input; a second replay gives the same new run."""
    fields = await call.json_or_nothing()
    run_id = call.path["run_id"]
    done = await dead_letters.replay(
        call.services.db,
        call.services.submitter.pusher,
        call.workspace_id,
        [run_id],
        fresh=fields["fresh"],
    )
    if not done:
        raise Problem("not_found", "There is no such run in this workspace.")
    [replayed] = done
    if replayed.new_run_id is None:
        raise Problem(
            "conflict",
            f"Only a failed run can be replayed; this one is {replayed.verdict}. "
            "Submit its input again as a new run.",
        )
    run = await load(call, replayed.new_run_id)
    headers = {"Location": views.run_path(run.run_id), "Retry-After": "1"}
    if replayed.verdict == "already":
        headers["Idempotent-Replayed"] = "true"
    return json_response(views.RUN(run), 202, headers)


async def discard_run(call: Call) -> Response:
    """Deal with a dead letter by deciding that nothing is to be done about it."""
    run_id = call.path["run_id"]
    await dead_letters.discard(call.services.db, call.workspace_id, [run_id])
    run = await load(call, run_id)
    if run.status is not Status.FAILED:
        raise Problem("conflict", f"Only a failed run can be discarded; this one is {run.status}.")
    return json_response(views.RUN(run))


async def list_claims(call: Call) -> Response:
    """The ledger of one run: every execution, with its worker, times, outcome and error."""
    run = await load(call, call.path["run_id"])
    found = await claims.read_claims(call.services.db, call.workspace_id, run.run_id)
    return json_response({"data": [CLAIM(claim) for claim in found]})


async def load(call: Call, run_id: str) -> Run:
    """A run as it stands, of this workspace; else a 404."""
    run = await call.services.read_run(call.workspace_id, run_id)
    if run is None:
        raise Problem("not_found", "There is no such run in this workspace.")
    return run


OPERATIONS = (
    Operation(
        "POST",
        "/v1/runs/{run_id}:cancel",
        cancel_run,
        "Cancel a run: queued ones at once, running ones as soon as their worker has stopped. "
        "A run that has ended is returned as it is.",
        {
            200: Answer("It has ended, now or before", "Run"),
            202: Answer("It was asked to stop", "Run", ("Location", "Retry-After")),
        },
        params=(RUN_ID,),
        problems=(404, 422, 503),
    ),
    Operation(
        "POST",
        "/v1/runs/{run_id}:replay",
        replay_run,
        "Run a dead letter's input again, as a new run that keeps its finished steps.",
        {202: Answer("The new run", "Run", ("Location", "Retry-After", "Idempotent-Replayed"))},
        body=REPLAY,
        body_types={"application/json": views.ref("Replay")},
        body_needed=False,
        params=(RUN_ID,),
        problems=(400, 404, 409, 413, 415, 422, 503),
    ),
    Operation(
        "POST",
        "/v1/runs/{run_id}:discard",
        discard_run,
        "Discard a dead letter: it stays readable and is counted no more.",
        {200: Answer("The run", "Run")},
        params=(RUN_ID,),
        problems=(404, 409, 422, 503),
    ),
    Operation(
        "GET",
        "/v1/runs/{run_id}/claims",
        list_claims,
        "The ledger of a run, oldest claim first.",
        {200: Answer("Its claims", "ClaimList")},
        params=(RUN_ID,),
        problems=(404, 422, 503),
    ),
)
