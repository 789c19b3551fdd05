"""A session's conversation as its agents see it. (What people read is in `runs`.)"""

from researchcopilot.core.models import Message
from researchcopilot.storage.db import Database
from researchcopilot.storage.sql import load

_SQL = load("messages")


async def last_messages(
    db: Database, workspace_id: int, session_id: str, limit: int
) -> list[Message]:
    """The newest `limit` messages of a session, oldest first."""
    rows = await db.rows(
        _SQL["last"], {"workspace_id": workspace_id, "session_id": session_id, "limit": limit}
    )
    return [Message(*row) for row in rows]
