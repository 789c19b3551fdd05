"""Memories: what runs have concluded, as later runs find and cite it. Read, and made forgotten."""

from datetime import datetime
from typing import Any

from starlette.responses import Response

from researchcopilot.api import cursors
from researchcopilot.api.operations import Answer, Call, Operation, Param
from researchcopilot.api.problems import Problem
from researchcopilot.api.render import json_response, moment
from researchcopilot.api.runs import CURSOR, LIMIT, page_response
from researchcopilot.api.views import Shown, View, text, time, uuid
from researchcopilot.core.ids import parse_id
from researchcopilot.core.schemas import Id
from researchcopilot.storage import memories as stored
from researchcopilot.storage.memories import Memory

_MEMORY_ID = Param("memory_id", Id(), "a memory of this workspace")

MEMORY: View[Memory] = View(
    "Memory",
    "What a run has concluded",
    (
        Shown("memory_id", uuid(), lambda memory: memory.memory_id),
        Shown("run_id", uuid("whose conclusion it is"), lambda memory: memory.run_id),
        Shown("question", text("what that run was asked"), lambda memory: memory.question),
        Shown("text", text("a sentence a line"), lambda memory: memory.text),
        Shown("created_at", time(), lambda memory: moment(memory.created_at)),
        Shown("expires_at", time("forgotten from then on"), lambda m: moment(m.expires_at)),
    ),
)


async def list_memories(call: Call) -> Response:
    """A page of memories, newest first."""
    limit = call.query["limit"]
    before = cursors.decode("memories", call.query["cursor"], _position)
    found = await stored.list_memories(
        call.services.db, call.workspace_id, before=before, limit=limit + 1
    )
    page = found[:limit]
    cursor = None
    if len(found) > limit:
        cursor = cursors.encode("memories", page[-1].created_at.isoformat(), page[-1].memory_id)
    return page_response(call, [MEMORY(memory) for memory in page], cursor)


def _position(values: list[Any]) -> tuple[datetime, str]:
    created_at, memory_id = datetime.fromisoformat(values[0]), parse_id(values[1])
    if created_at.tzinfo is None or memory_id is None:
        raise ValueError("not a position")
    return created_at, memory_id


async def get_memory(call: Call) -> Response:
    """One memory, as citations name it."""
    found = await stored.get_memory(call.services.db, call.workspace_id, call.path["memory_id"])
    if found is None:
        raise _not_found()
    return json_response(MEMORY(found))


async def delete_memory(call: Call) -> Response:
    """Forget it: no run that starts from now on finds it."""
    if not await stored.forget(call.services.db, call.workspace_id, call.path["memory_id"]):
        raise _not_found()
    return Response(None, 204)


def _not_found() -> Problem:
    return Problem("not_found", "There is no such memory in this workspace, or not any more.")


OPERATIONS = (
    Operation(
        "GET",
        "/v1/memories",
        list_memories,
        "What runs of this workspace have concluded, newest first; none that has expired.",
        {200: Answer("A page", "MemoryPage", ("Link",))},
        query=(LIMIT, CURSOR),
        problems=(422, 503),
    ),
    Operation(
        "GET",
        "/v1/memories/{memory_id}",
        get_memory,
        "One memory, as long as it is remembered.",
        {200: Answer("The memory", "Memory")},
        params=(_MEMORY_ID,),
        problems=(404, 422, 503),
    ),
    Operation(
        "DELETE",
        "/v1/memories/{memory_id}",
        delete_memory,
        "Forget a memory. Answers that have cited it stay as they are.",
        {204: Answer("It is forgotten")},
        params=(_MEMORY_ID,),
        problems=(404, 422, 503),
    ),
)
