"""API keys: kept as SHA-256, shown once. And the workspaces that they belong to.

A key is 256 random bits, so a plain hash is enough: there is nothing to guess, and a lookup by
hash needs no comparison in constant time.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import datetime

from researchcopilot.core.errors import BadInput
from researchcopilot.core.variables import plain_name
from researchcopilot.storage.db import Database
from researchcopilot.storage.sql import load

_SQL = load("keys")
_KEY = re.compile(r"rc_[A-Za-z0-9_-]{43}")
_HINT = 9


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A key without itself. `hint` is its first characters."""

    key_id: str
    workspace: str
    name: str
    hint: str
    created_at: datetime
    revoked_at: datetime | None


def looks_like_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None


async def create(db: Database, *, workspace: str, name: str) -> tuple[str, KeyInfo]:
    """A new key and what is kept of it. This is the only time that the key is seen."""
    key = "rc_" + secrets.token_urlsafe(32)
    workspace_id = await workspace_id_of(db, workspace)
    row = await db.one(
        _SQL["create"],
        {
            "workspace_id": workspace_id,
            "name": name,
            "hash": hashlib.sha256(key.encode()).digest(),
            "hint": key[:_HINT],
        },
    )
    assert row is not None
    return key, KeyInfo(workspace=workspace, **row)


async def find(db: Database, digest: bytes) -> int | None:
    """The workspace of the key with this SHA-256; None if there is none or it was revoked."""
    row = await db.one(_SQL["find"], {"hash": digest})
    return None if row is None else int(row["workspace_id"])


async def list_keys(db: Database, *, workspace: str | None = None) -> list[KeyInfo]:
    """All keys, or those of one workspace, oldest first; revoked ones too."""
    return [KeyInfo(**row) for row in await db.dicts(_SQL["list"], {"workspace": workspace})]


async def revoke(db: Database, which: str) -> list[KeyInfo]:
    """Revoke the key with this key_id or hint. None or several found: nothing is changed."""
    async with db.transaction() as connection:
        cursor = await connection.execute(_SQL["match"], {"which": which})
        found = [row[0] for row in await cursor.fetchall()]
        if len(found) == 1:
            await connection.execute(_SQL["revoke"], {"key_id": found[0]})
    return [KeyInfo(**row) for row in await db.dicts(_SQL["by_ids"], {"key_ids": found})]


async def workspace_id_of(db: Database, name: str) -> int:
    """The workspace of that name, made if there is none. Safe at once from many sides."""
    try:
        plain_name(name)
    except ValueError as error:
        raise BadInput(
            f"{name!r} cannot be a workspace: take {error}.", field="workspace"
        ) from error
    row = await db.one(_SQL["find_workspace"], {"name": name})
    if row is None:
        await db.execute(_SQL["add_workspace"], {"name": name})
        row = await db.one(_SQL["find_workspace"], {"name": name})
    assert row is not None
    return int(row["workspace_id"])
