"""The verbs of a run as one worker of the tests sends them; shared by the rooms of this folder."""

import asyncio
from typing import Any

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Outcome, Verdict
from researchcopilot.storage import moves
from researchcopilot.storage.db import Database

WORKER = new_id()
ERROR = {"type": "ValueError", "message": "no such customer 17"}


async def open_connections(db: Database, number: int) -> None:
    """Before a race: the pool opens them one by one, and who waits for one does not race."""
    await asyncio.gather(*(db.rows(b"SELECT pg_sleep(0.05)") for _ in range(number)))


async def waits_for_a_lock(db: Database) -> bool:
    """Does anybody in this database?"""
    return bool(
        await db.rows(b"""
        SELECT 1 FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'""")
    )


async def claim(
    db: Database, *run_ids: str, worker_id: str = WORKER, lease_s: float = 60.0
) -> dict[str, Verdict]:
    found = await moves.claim(db, run_ids, worker_id=worker_id, claim_id=new_id(), lease_s=lease_s)
    return {verdict.run_id: verdict for verdict in found}


async def claimed(db: Database, run_id: str, worker_id: str = WORKER) -> int:
    """Claim it; its claim_no."""
    verdict = (await claim(db, run_id, worker_id=worker_id))[run_id]
    assert verdict.claim is not None, verdict
    return verdict.claim.claim_no


async def finish(
    db: Database, run_id: str, kind: str, claim_no: int = 1, **fields: Any
) -> tuple[str, list[str]]:
    """Its verdict, and the runs that were unparked by it."""
    fields = {"error": ERROR if kind in ("failed", "retry") else None, **fields}
    if kind == "succeeded":
        fields = {"result": '"done"', **fields}
    outcome = Outcome(run_id, claim_no, WORKER, kind, **fields)
    [finished], unparked = await moves.finish(db, WORKER, [outcome])
    return finished.verdict, [due.entry.run_id for due in unparked]


async def cancel(
    db: Database, *run_ids: str, workspace_id: int = 1
) -> tuple[dict[str, str], list[str], list[tuple[str, str]]]:
    """Verdicts, the runs that were unparked, and (worker, run) of those to be told."""
    verdicts, unparked, asked = await moves.cancel(db, workspace_id, run_ids)
    return (
        {verdict.run_id: verdict.verdict for verdict in verdicts},
        [due.entry.run_id for due in unparked],
        asked,
    )


async def fail(db: Database, run_id: str, error: dict[str, str] | None = None) -> None:
    """To a dead letter, in one claim."""
    claim_no = await claimed(db, run_id)
    assert (await finish(db, run_id, "failed", claim_no, error=error or ERROR))[0] == "failed"
