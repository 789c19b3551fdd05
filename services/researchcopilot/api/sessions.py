"""Sessions: the conversation that runs belong to."""

from typing import Any

from starlette.responses import Response

from researchcopilot.api import cursors, views
from researchcopilot.api.operations import Answer, Call, Operation, Param
from researchcopilot.api.problems import Problem
from researchcopilot.api.runs import CURSOR, LIMIT, page_response
from researchcopilot.core.schemas import Id
from researchcopilot.storage import runs as stored


async def list_messages(call: Call) -> Response:
    """A page of a session's conversation, oldest first."""
    db, workspace_id = call.services.db, call.workspace_id
    session_id, limit = call.path["session_id"], call.query["limit"]
    after = cursors.decode("messages", call.query["cursor"], _position) or 0
    page = await stored.messages(db, workspace_id, session_id, after=after, limit=limit)
    if not page and not await stored.session_exists(db, workspace_id, session_id):
        raise Problem("not_found", "There is no such session in this workspace.")
    cursor = None
    # A page can be short because it is heavy, so its length does not tell whether it is the last.
    if page and await stored.has_messages_after(db, workspace_id, session_id, page[-1].message_id):
        cursor = cursors.encode("messages", page[-1].message_id)
    return page_response(call, [views.MESSAGE(message) for message in page], cursor)


def _position(values: list[Any]) -> int:
    found = values[0]
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 2**63:
        raise ValueError("not a position")
    return found


OPERATIONS = (
    Operation(
        "GET",
        "/v1/sessions/{session_id}/messages",
        list_messages,
        "What was asked and answered in a session, oldest first.",
        {200: Answer("A page", "MessagePage", ("Link",))},
        params=(Param("session_id", Id(), "a session of this workspace"),),
        query=(LIMIT, CURSOR),
        problems=(404, 422, 503),
    ),
)
