"""Memories: what runs have concluded, kept for the later ones of their workspace until they expire.

Written by finish_1, in the transaction of the success. One that has expired is as good as none from
that moment on, whenever its row is removed; so is one of another workspace.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from researchcopilot.storage.db import Database
from researchcopilot.storage.sql import load

_SQL = load("memories")


@dataclass(frozen=True, slots=True)
class Memory:
    """As people see it. `text` has a sentence a line; its run may be gone by now."""

    memory_id: str
    run_id: str
    question: str
    text: str
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Recalled:
    """As a run cites it. `day` is the day it was made in its workspace's zone, ISO."""

    memory_id: str
    run_id: str
    question: str
    text: str
    day: str


async def recall(
    db: Database, workspace_id: int, tokens: Sequence[str], limit: int
) -> list[Recalled]:
    """Those with most of these tokens, the newest first among equals."""
    params = {"workspace_id": workspace_id, "tokens": list(tokens), "limit": limit}
    return [Recalled(**row) for row in await db.dicts(_SQL["recall"], params)]


async def living(db: Database, workspace_id: int, memory_ids: Sequence[str]) -> set[str]:
    """Which of them are neither expired nor removed."""
    params = {"workspace_id": workspace_id, "memory_ids": list(memory_ids)}
    return {row[0] for row in await db.rows(_SQL["living"], params)}


async def list_memories(
    db: Database, workspace_id: int, *, before: tuple[datetime, str] | None, limit: int
) -> list[Memory]:
    """Newest first, those before (created_at, memory_id)."""
    at, memory_id = before or (None, None)
    params = {"workspace_id": workspace_id, "at": at, "memory_id": memory_id, "limit": limit}
    return [Memory(**row) for row in await db.dicts(_SQL["list"], params)]


async def get_memory(db: Database, workspace_id: int, memory_id: str) -> Memory | None:
    params = {"workspace_id": workspace_id, "memory_id": memory_id}
    row = await db.one(_SQL["get"], params)
    return None if row is None else Memory(**row)


async def forget(db: Database, workspace_id: int, memory_id: str) -> bool:
    """Remove one; False if there is none here."""
    params = {"workspace_id": workspace_id, "memory_id": memory_id}
    return bool(await db.execute(_SQL["forget"], params))


async def remove_expired(db: Database, limit: int) -> int:
    """At most `limit` that are past their time; how many it was."""
    return await db.execute(_SQL["remove_expired"], {"limit": limit})
