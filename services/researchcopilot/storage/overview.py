"""The whole at one look, for demos and for people: counts over all workspaces, and the ledger.

Reads only. The counts walk whole tables: not for a hot path.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from researchcopilot.storage.db import Database
from researchcopilot.storage.sql import load

_SQL = load("overview")


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One execution of a run by one worker; `pid` is that of its process, if it is still known."""

    run_id: str
    claim_no: int
    worker_id: str
    pid: int | None
    started_at: datetime
    finished_at: datetime | None
    outcome: str | None


async def runs_by_status(db: Database) -> dict[str, int]:
    return {row[0]: row[1] for row in await db.rows(_SQL["runs_by_status"])}


async def messages_by_role(db: Database) -> dict[str, int]:
    """user first."""
    return {row[0]: row[1] for row in await db.rows(_SQL["messages_by_role"])}


async def claims_of(db: Database, run_ids: Sequence[str]) -> list[LedgerRow]:
    """The claims of these runs, each run's in order."""
    rows = await db.rows(_SQL["claims"], {"run_ids": list(run_ids)})
    return [LedgerRow(*row) for row in rows]
