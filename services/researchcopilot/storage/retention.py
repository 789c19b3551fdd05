"""Retention: old rows leave in small batches, with everything that hangs on them."""

from researchcopilot.core.settings import RetentionSettings
from researchcopilot.storage.db import Database
from researchcopilot.storage.sql import load

_SQL = load("retention")
KINDS = ("runs", "sessions", "keys", "ticks", "stats")
DAY_S = 86_400.0


async def prune(db: Database, kind: str, keep: RetentionSettings, limit: int) -> int:
    """Remove at most `limit` rows of one of KINDS that are past their time; how many it was."""
    return await db.execute(
        _SQL[kind],
        {
            "runs_s": keep.runs_days * DAY_S,
            "dead_s": keep.dead_days * DAY_S,
            "keys_s": keep.keys_hours * 3600.0,
            "limit": limit,
        },
    )
