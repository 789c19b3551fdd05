"""API keys that were made elsewhere and are kept in a secret: the database gets their hash."""

from enum import Enum

from researchcopilot.storage.db import Database
from researchcopilot.storage.keys import workspace_id_of
from researchcopilot.storage.sql import load

_SQL = load("given_keys")


class Given(Enum):
    ADDED = "added"
    THERE = "known already"
    REVOKED = "was revoked and stays so"
    ANOTHERS = "opens another workspace already"


async def ensure(db: Database, *, digest: bytes, hint: str, workspace: str, name: str) -> Given:
    """Add the key with this SHA-256 unless it is there. Safe twice, and at once."""
    workspace_id = await workspace_id_of(db, workspace)
    added = await db.execute(
        _SQL["add"], {"workspace_id": workspace_id, "name": name, "hash": digest, "hint": hint}
    )
    row = await db.one(_SQL["look"], {"hash": digest})
    assert row is not None
    if row["revoked"]:
        return Given.REVOKED
    if row["workspace_id"] != workspace_id:
        return Given.ANOTHERS
    return Given.ADDED if added else Given.THERE
