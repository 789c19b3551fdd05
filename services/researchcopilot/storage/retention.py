"""Retention: old rows leave in small batches, with everything that hangs on them."""

from researchcopilot.core.settings import RetentionSettings
from researchcopilot.storage.db import Database
from researchcopilot.storage.sql import load

_SQL = load("retention")
KINDS = ("runs", "keys", "ticks", "stats")
FIRST = "00000000-0000-0000-0000-000000000000"
DAY_S = 86_400.0


async def prune(db: Database, kind: str, keep: RetentionSettings, limit: int) -> int:
    """Remove at most `limit` rows of one of KINDS that are past their time; how many it was."""
    return await db.execute(_SQL[kind], {**_ages(keep), "limit": limit})


async def prune_sessions(
    db: Database, after: str, keep: RetentionSettings, limit: int
) -> tuple[int, str | None]:
    """Look at the next `limit` sessions and remove those that are empty and past their time: how
    many it was, and the last that was looked at (None: that was the end)."""
    [(removed, last)] = await db.rows(
        _SQL["sessions"], {**_ages(keep), "after": after, "limit": limit}
    )
    return removed, last


def _ages(keep: RetentionSettings) -> dict[str, float]:
    return {
        "runs_s": keep.runs_days * DAY_S,
        "dead_s": keep.dead_days * DAY_S,
        "keys_s": keep.keys_hours * 3600.0,
    }
