"""Schedules: what the clock starts. Made, changed, paused, fired by hand, looked ahead at; and what
became of each tick."""

import zoneinfo
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from starlette.responses import Response

from researchcopilot.agents.new_schedules import NEW_SCHEDULE, check_rule, new_schedule
from researchcopilot.api import cursors, idempotency, views
from researchcopilot.api.actions import load as load_run
from researchcopilot.api.operations import Answer, Call, Operation, Param
from researchcopilot.api.problems import Fault, Problem, refuse
from researchcopilot.api.render import json_response, moment
from researchcopilot.api.runs import CURSOR, LIMIT, page_response
from researchcopilot.api.schedule_bodies import (
    COUNT,
    PREVIEW,
    SCHEDULE_CHANGES,
    changed,
    changes,
    check_changed,
    next_ticks,
    refused,
)
from researchcopilot.api.schedule_views import FULL_SCHEDULE, SCHEDULE, TICK, Seen
from researchcopilot.api.views import ref
from researchcopilot.core.errors import BadInput, Conflict
from researchcopilot.core.schedules import Schedule
from researchcopilot.core.schemas import Id, Text
from researchcopilot.storage import owned_schedules
from researchcopilot.storage import schedules as stored
from researchcopilot.storage.queue import SCHEDULES
from researchcopilot.storage.schedules import Edit

_ID = Param("schedule_id", Id(), "a schedule of this workspace")
_NAME = Text(1, 200)


async def create_schedule(call: Call) -> Response:
    """Make a schedule."""
    faults: list[Fault] = []
    fields = await call.json()
    new = await new_schedule(call.services.door, call.workspace_id, fields, faults)
    if faults:
        raise refuse(faults)
    try:
        made = await stored.create(call.services.db, new)
    except BadInput as error:
        raise refused(error) from error
    call.services.submitter.pusher.wake(SCHEDULES)
    headers = {"Location": f"/v1/schedules/{made.schedule_id}"}
    return json_response(FULL_SCHEDULE(Seen(made, None)), 201, headers)


async def list_schedules(call: Call) -> Response:
    """A page of schedules, by name."""
    limit = call.query["limit"]
    after = cursors.decode("schedules", call.query["cursor"], _position)
    found = await stored.list_schedules(
        call.services.db, call.workspace_id, after=after, limit=limit + 1
    )
    page = found[:limit]
    cursor = cursors.encode("schedules", page[-1].name) if len(found) > limit else None
    return page_response(call, [SCHEDULE(seen) for seen in await _seen(call, page)], cursor)


def _position(values: list[Any]) -> str:
    faults: list[Fault] = []
    name = _NAME.check(values[0], "cursor", faults)
    if faults:
        raise ValueError("not a position")
    return str(name)


async def get_schedule(call: Call) -> Response:
    """One schedule, with its input and its last tick."""
    return await _shown(call, await _load(call))


async def change_schedule(call: Call) -> Response:
    """Change what the body names; new times count from now on."""
    fields, before = await call.json(), await _load(call)
    await _check_owner(call)
    wanted = changes(call.said, fields, before)
    await check_changed(call, before, wanted)
    return await _change(call, lambda schedule, now: changed(schedule, wanted, now))


async def delete_schedule(call: Call) -> Response:
    """Delete a schedule and its history; its runs stay."""
    await _check_owner(call)
    if not await stored.delete(call.services.db, call.workspace_id, call.path["schedule_id"]):
        raise _not_found()
    return Response(None, 204)


async def pause_schedule(call: Call) -> Response:
    """No ticks until it is resumed; a second pause changes nothing."""
    await _check_owner(call)
    return await _change(call, stored.paused)


async def resume_schedule(call: Call) -> Response:
    """Go on with the first tick from now; what was due meanwhile is not made up for."""
    await _check_owner(call)
    return await _change(call, stored.resumed)


async def trigger_schedule(call: Call) -> Response:
    """Fire it now, paused or not. Its rule and its next tick stay."""
    key = idempotency.of_call(call)
    done = await stored.trigger(call.services.db, call.workspace_id, call.path["schedule_id"], key)
    if done is None:
        raise _not_found()
    if done.verdict == "mismatch":
        message = "was used before for another schedule; take a new key"
        raise refuse([Fault(idempotency.HEADER, message, "idempotency_mismatch")])
    if done.verdict == "busy":
        raise Problem(
            "conflict",
            f"Its run {done.run_id} has not ended, and overlap is skip. Wait for that run, cancel "
            "it, or set overlap to allow.",
        )
    if done.push is not None:
        call.services.submitter.pusher.push([done.push])
    run = await load_run(call, done.run_id)
    headers = {"Location": views.run_path(run.run_id), "Retry-After": "1"}
    if done.verdict == "replayed":
        headers["Idempotent-Replayed"] = "true"
    return json_response(views.RUN(run), 202, headers)


async def preview_schedule(call: Call) -> Response:
    """The next ticks of a schedule, as if it were not paused."""
    return await _preview(call, await _load(call), call.query["count"])


async def preview_schedules(call: Call) -> Response:
    """The next ticks that a rule would have, without making a schedule."""
    fields = await call.json()
    count = fields.pop("count")
    schedule = Schedule("", call.workspace_id, "", "", None, **fields)
    faults: list[Fault] = []
    check_rule(schedule, faults)
    if faults:
        raise refuse(faults)
    now = await stored.database_time(call.services.db)
    try:
        schedule = stored.starting(schedule, now)
    except BadInput as error:
        raise refused(error) from error
    return await _preview(call, schedule, count)


async def list_ticks(call: Call) -> Response:
    """A page of a schedule's ticks, newest first."""
    schedule, limit = await _load(call), call.query["limit"]
    before = cursors.decode("ticks", call.query["cursor"], _moment)
    found = await stored.list_ticks(
        call.services.db, call.workspace_id, schedule.schedule_id, before=before, limit=limit + 1
    )
    page = found[:limit]
    cursor = cursors.encode("ticks", page[-1].tick.isoformat()) if len(found) > limit else None
    return page_response(call, [TICK(tick) for tick in page], cursor)


def _moment(values: list[Any]) -> datetime:
    found = datetime.fromisoformat(values[0])
    if found.tzinfo is None:
        raise ValueError("not a position")
    return found


async def _load(call: Call) -> Schedule:
    found = await stored.get(call.services.db, call.workspace_id, call.path["schedule_id"])
    if found is None:
        raise _not_found()
    return found


async def _check_owner(call: Call) -> None:
    """What an object of a cluster says of its schedule is said there: here it would be undone."""
    owner = await owned_schedules.owner_of(call.services.db, call.path["schedule_id"])
    if owner is None:
        return
    namespace, name = owner
    found = await stored.get(call.services.db, call.workspace_id, call.path["schedule_id"])
    if found is not None:  # a foreign workspace is told nothing
        raise Conflict(
            f"This schedule is owned by the RunSchedule {name} of the namespace {namespace}. "
            f"Change that: kubectl edit rsched {name} -n {namespace} (spec.suspend pauses it); "
            "or delete that."
        )


def _not_found() -> Problem:
    return Problem("not_found", "There is no such schedule in this workspace.")


async def _change(call: Call, edit: Edit) -> Response:
    schedule_id = call.path["schedule_id"]
    try:
        done = await stored.change(call.services.db, call.workspace_id, schedule_id, edit)
    except BadInput as error:
        raise refused(error) from error
    if done is None:
        raise _not_found()
    call.services.submitter.pusher.wake(SCHEDULES)
    return await _shown(call, done)


async def _shown(call: Call, schedule: Schedule) -> Response:
    [seen] = await _seen(call, [schedule])
    return json_response(FULL_SCHEDULE(seen))


async def _seen(call: Call, found: Sequence[Schedule]) -> list[Seen]:
    last = await stored.last_ticks(call.services.db, [one.schedule_id for one in found])
    return [Seen(one, last.get(one.schedule_id)) for one in found]


async def _preview(call: Call, schedule: Schedule, count: int) -> Response:
    now = await stored.database_time(call.services.db)
    zone = zoneinfo.ZoneInfo(schedule.timezone)
    try:
        ticks = next_ticks(replace(schedule, paused_at=None), now, count)
    except BadInput:
        ticks = []  # it is over
    shown = [{"tick": moment(tick), "local": tick.astimezone(zone).isoformat()} for tick in ticks]
    return json_response({"data": shown})


_JSON = "application/json"
_COUNT = Param("count", COUNT.kind, COUNT.doc, COUNT.default)
OPERATIONS = (
    Operation(
        "POST",
        "/v1/schedules",
        create_schedule,
        "Make a schedule: a run of its agent at each tick of its rule.",
        {201: Answer("Made", "FullSchedule", ("Location",))},
        body=NEW_SCHEDULE,
        body_types={_JSON: ref("NewSchedule")},
        problems=(400, 408, 413, 415, 422, 503),
    ),
    Operation(
        "GET",
        "/v1/schedules",
        list_schedules,
        "The schedules of the workspace, by name, without inputs; the product's own too.",
        {200: Answer("A page", "SchedulePage", ("Link",))},
        query=(LIMIT, CURSOR),
        problems=(422, 503),
    ),
    Operation(
        "POST",
        "/v1/schedules:preview",
        preview_schedules,
        "The next ticks that a rule would have. Nothing is made.",
        {200: Answer("The ticks", "TicksToCome")},
        body=PREVIEW,
        body_types={_JSON: ref("SchedulePreview")},
        problems=(400, 408, 413, 415, 422, 503),
    ),
    Operation(
        "POST",
        "/v1/schedules/{schedule_id}:pause",
        pause_schedule,
        "Pause it: no ticks until it is resumed. Runs that it has started go on.",
        {200: Answer("Paused", "FullSchedule")},
        params=(_ID,),
        problems=(404, 409, 422, 503),
    ),
    Operation(
        "POST",
        "/v1/schedules/{schedule_id}:resume",
        resume_schedule,
        "Resume it with the first tick from now; what was due meanwhile is not made up for.",
        {200: Answer("Goes on", "FullSchedule")},
        params=(_ID,),
        problems=(404, 409, 422, 503),
    ),
    Operation(
        "POST",
        "/v1/schedules/{schedule_id}:trigger",
        trigger_schedule,
        "Fire it now, paused or not. 409 if a run of it has not ended and overlap is skip.",
        {202: Answer("The run", "Run", ("Location", "Retry-After", "Idempotent-Replayed"))},
        params=(_ID,),
        headers=(idempotency.HEADER,),
        problems=(404, 409, 422, 503),
    ),
    Operation(
        "GET",
        "/v1/schedules/{schedule_id}:preview",
        preview_schedule,
        "Its next ticks, as if it were not paused.",
        {200: Answer("The ticks", "TicksToCome")},
        params=(_ID,),
        query=(_COUNT,),
        problems=(404, 422, 503),
    ),
    Operation(
        "GET",
        "/v1/schedules/{schedule_id}/ticks",
        list_ticks,
        "What became of each of its ticks, newest first.",
        {200: Answer("A page", "TickPage", ("Link",))},
        params=(_ID,),
        query=(LIMIT, CURSOR),
        problems=(404, 422, 503),
    ),
    Operation(
        "GET",
        "/v1/schedules/{schedule_id}",
        get_schedule,
        "One schedule, with its input, its next tick and its last.",
        {200: Answer("The schedule", "FullSchedule")},
        params=(_ID,),
        problems=(404, 422, 503),
    ),
    Operation(
        "PATCH",
        "/v1/schedules/{schedule_id}",
        change_schedule,
        "Change what the body names; null is as if not given. New times count from now on.",
        {200: Answer("Changed", "FullSchedule")},
        body=SCHEDULE_CHANGES,
        body_types={_JSON: ref("ScheduleChanges")},
        params=(_ID,),
        problems=(400, 404, 408, 409, 413, 415, 422, 503),
    ),
    Operation(
        "DELETE",
        "/v1/schedules/{schedule_id}",
        delete_schedule,
        "Delete it and its history; its runs stay. The product's own can only be paused; one that "
        "a RunSchedule of a cluster owns is changed and deleted there (409).",
        {204: Answer("Deleted")},
        params=(_ID,),
        problems=(404, 409, 422, 503),
    ),
)
