"""The ledger: one row for each execution of a run by a worker, kept whatever came of it.

It is written by the moves (claim opens a row; finish and reclaim close it) and only read here.
"""

from dataclasses import dataclass
from datetime import datetime

from researchcopilot.storage.db import Database
from researchcopilot.storage.sql import load

_SQL = load("claims")


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """One execution.

    `outcome`: succeeded, failed, cancelled, retry, release, lost; None while it goes on.
    `by_worker`: its own worker said so, not the janitor. `error`: {"type", "message"} and perhaps
    "trace". `host`, `pid` and `pod` are known as long as the worker's row is kept.
    """

    run_id: str
    claim_no: int
    worker_id: str
    host: str | None
    pid: int | None
    pod: str | None
    started_at: datetime
    finished_at: datetime | None
    outcome: str | None
    by_worker: bool
    error: dict[str, str] | None


async def waited_since_loss(db: Database, run_id: str, claim_no: int) -> float | None:
    """Seconds from the move that took the run back from its dead worker to this claim; None if the
    claim before this one ended in another way."""
    row = await db.one(_SQL["since_loss"], {"run_id": run_id, "claim_no": claim_no})
    return None if row is None else float(row["wait_s"])


async def read_claims(db: Database, workspace_id: int, run_id: str) -> list[ClaimRecord]:
    """Every claim of a run, oldest first; none for a run of another workspace."""
    rows = await db.rows(_SQL["of_run"], {"workspace_id": workspace_id, "run_id": run_id})
    return [ClaimRecord(*row) for row in rows]
