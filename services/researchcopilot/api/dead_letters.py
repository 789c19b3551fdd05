"""Dead letters: failed runs that nobody has dealt with, grouped by what went wrong; and dealing
with many of them at once, by a filter."""

from typing import Any

from starlette.responses import Response

from researchcopilot.api import views
from researchcopilot.api.operations import Answer, Call, Operation, Param
from researchcopilot.api.problems import Fault, refuse
from researchcopilot.api.render import json_response, moment
from researchcopilot.core.fields import Body, Field
from researchcopilot.core.schemas import Flag, Kind, Moment, Schema, Text, Whole
from researchcopilot.storage import dead_letters
from researchcopilot.storage.dead_letters import BATCH, DeadLetters, Filter

MOST = 10_000

_FILTERS: tuple[tuple[str, Kind, str], ...] = (
    ("fingerprint", Text(1, 64), "of this kind of failure"),
    ("agent", Text(1, 200), "of this agent"),
    ("queue", Text(1, 200), "of this queue"),
    ("error_type", Text(1, 200), "with this type of error"),
    ("failed_after", Moment(), "failed at this time or later"),
    ("failed_before", Moment(), "failed earlier than this"),
)
_FIELDS = tuple(Field(name, kind, doc) for name, kind, doc in _FILTERS)
_LIMIT = Field("limit", Whole(1, MOST), "at most so many, oldest first", default=1000)
_ALL = Field("all", Flag(), "true: no filter is meant", default=False)
REPLAY_MANY = Body(
    "ReplayDeadLetters",
    (*_FIELDS, _LIMIT, _ALL, Field("fresh", Flag(), "true: without finished steps", default=False)),
)
DISCARD_MANY = Body("DiscardDeadLetters", (*_FIELDS, _LIMIT, _ALL))

GROUP: views.View[DeadLetters] = views.View(
    "DeadLetterGroup",
    "Failed runs of one kind of failure",
    (
        views.Shown("fingerprint", views.text("give it as a filter"), lambda g: g.fingerprint),
        views.Shown("agent", views.text(), lambda g: g.agent),
        views.Shown("error_type", views.maybe(views.text()), lambda g: g.error_type),
        views.Shown("message", views.maybe(views.text("of the newest")), lambda g: g.message),
        views.Shown("count", views.whole(), lambda g: g.count),
        views.Shown("first_failed_at", views.time(), lambda g: moment(g.first_failed_at)),
        views.Shown("last_failed_at", views.time(), lambda g: moment(g.last_failed_at)),
        views.Shown(
            "run_ids",
            {"type": "array", "items": views.uuid(), "description": "the newest five"},
            lambda g: list(g.run_ids),
        ),
    ),
)
LIST_SCHEMA: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "data": {"type": "array", "items": views.ref("DeadLetterGroup")},
        "total": views.whole("dead letters of the workspace, whatever the filter"),
    },
    "required": ["data", "total"],
}
DEALT_SCHEMA: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "matched": views.whole("dead letters that the filter named, up to its limit"),
        "done": views.whole("of these, dealt with now"),
        "run_ids": {"type": "array", "items": views.uuid(), "description": "the new runs, or"
                    " those that were discarded"},
        "detail": views.text("what happened, for people"),
    },
    "required": ["matched", "done", "run_ids", "detail"],
}  # fmt: skip


async def list_dead_letters(call: Call) -> Response:
    """Groups of dead letters, the largest first."""
    query = dict(call.query)
    limit = query.pop("limit")
    db = call.services.db
    found = await dead_letters.groups(db, Filter(call.workspace_id, **query), limit)
    total = await dead_letters.count(db, call.workspace_id)
    return json_response({"data": [GROUP(group) for group in found], "total": total})


async def replay_dead_letters(call: Call) -> Response:
    """A new run for each dead letter that the filter names."""
    fields = await call.json()
    fresh = fields.pop("fresh")
    wanted, run_ids = await _matching(call, fields)
    made: list[str] = []
    for start in range(0, len(run_ids), BATCH):
        done = await dead_letters.replay(
            call.services.db,
            call.services.submitter.pusher,
            wanted.workspace_id,
            run_ids[start : start + BATCH],
            fresh=fresh,
        )
        made += [one.new_run_id for one in done if one.verdict == "replayed" and one.new_run_id]
    return _dealt(run_ids, made, "replayed")


async def discard_dead_letters(call: Call) -> Response:
    """Nothing is to be done about the dead letters that the filter names."""
    wanted, run_ids = await _matching(call, await call.json())
    gone: list[str] = []
    for start in range(0, len(run_ids), BATCH):
        gone += await dead_letters.discard(
            call.services.db, wanted.workspace_id, run_ids[start : start + BATCH]
        )
    return _dealt(run_ids, gone, "discarded")


async def _matching(call: Call, fields: dict[str, Any]) -> tuple[Filter, list[str]]:
    limit, everything = fields.pop("limit"), fields.pop("all")
    if not everything and all(value is None for value in fields.values()):
        raise refuse([Fault("$", "names no filter; send one, or all: true", "required")])
    wanted = Filter(call.workspace_id, **fields)
    return wanted, await dead_letters.matching(call.services.db, wanted, limit)


def _dealt(matched: list[str], done: list[str], verb: str) -> Response:
    detail = f"{len(done)} of {len(matched)} dead letters were {verb}."
    if not matched:
        detail = "The filter names no dead letter. GET /v1/dead-letters lists what there is."
    return json_response(
        {"matched": len(matched), "done": len(done), "run_ids": done, "detail": detail}
    )


OPERATIONS = (
    Operation(
        "GET",
        "/v1/dead-letters",
        list_dead_letters,
        "Failed runs that were neither replayed nor discarded, grouped by kind of failure.",
        {200: Answer("The groups, largest first", "DeadLetterList")},
        query=(
            *(Param(name, kind, doc) for name, kind, doc in _FILTERS),
            Param("limit", Whole(1, 500), "groups at most", 100),
        ),
        problems=(422, 503),
    ),
    Operation(
        "POST",
        "/v1/dead-letters:replay",
        replay_dead_letters,
        "Replay every dead letter that the filter names; with all: true, each of them.",
        {200: Answer("What was done", "DeadLettersDealt")},
        body=REPLAY_MANY,
        body_types={"application/json": views.ref("ReplayDeadLetters")},
        problems=(400, 413, 415, 422, 503),
    ),
    Operation(
        "POST",
        "/v1/dead-letters:discard",
        discard_dead_letters,
        "Discard every dead letter that the filter names; with all: true, each of them.",
        {200: Answer("What was done", "DeadLettersDealt")},
        body=DISCARD_MANY,
        body_types={"application/json": views.ref("DiscardDeadLetters")},
        problems=(400, 413, 415, 422, 503),
    ),
)
