"""Digests: what a run that succeeded came to, read for a digest and written as a message.

What is read does not change any more, since its run is terminal; so it does not matter which claim
of which digest writes it. The unique key of messages (run, role) lets the first one through.
"""

from dataclasses import dataclass
from typing import Any

from researchcopilot.core.text import dumps
from researchcopilot.storage.db import Database
from researchcopilot.storage.sql import load

_SQL = load("digests")


@dataclass(frozen=True, slots=True)
class Ended:
    """A run and what it took. `executed_s` is the sum over its `claims`, `seconds` from its
    submission to its end; `passages` is what its steps have read of the corpus."""

    run_id: str
    session_id: str | None
    agent: str
    status: str
    input: Any
    result: Any
    attempts: int
    claims: int
    steps: int
    passages: int
    executed_s: float
    seconds: float


async def read(db: Database, workspace_id: int, run_id: str) -> Ended | None:
    """None if there is no such run in this workspace (any more)."""
    row = await db.one(_SQL["read"], {"workspace_id": workspace_id, "run_id": run_id})
    return None if row is None else Ended(**row)


async def write(db: Database, workspace_id: int, run_id: str, payload: dict[str, Any]) -> bool:
    """Add the message to the run's session. False if it has one already, or if it has gone."""
    params = {"workspace_id": workspace_id, "run_id": run_id, "payload": dumps(payload)}
    return bool(await db.execute(_SQL["write"], params))
