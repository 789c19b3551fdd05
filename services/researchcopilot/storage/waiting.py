"""Runs that wait for somebody: for their session's turn, or for a worker that has their agent.

A parked run is freed by the move that ends the turn before it; so `suspects` must find nothing that
is forgotten, ever. It is looked for all the same, because such a run would be stuck for good.
"""

from researchcopilot.storage.db import Database
from researchcopilot.storage.sql import load

_SQL = load("waiting")
FIRST = "00000000-0000-0000-0000-000000000000"


async def suspects(db: Database, after: str, limit: int) -> tuple[str | None, list[str]]:
    """Of the next `limit` sessions with parked runs: the last id (None: that was the end), and
    those that look forgotten. Unlocked: most suspects are in the middle of a move."""
    [(last, candidates)] = await db.rows(_SQL["suspects"], {"after": after, "limit": limit})
    return last, candidates


async def without_agent(db: Database) -> dict[str, int]:
    """How many runs wait after a worker gave them back that lacks their agent, by agent."""
    return dict(await db.rows(_SQL["without_agent"]))
