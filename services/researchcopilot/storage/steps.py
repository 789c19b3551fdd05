"""Steps: memoised parts of a run. The first value wins, and only the worker in charge may add one.

Inserted while (run, claim_no, worker) is running, under a share lock on the run's row, so that no
reclaim can come between the look and the insert.
"""

from typing import Any

from researchcopilot.core.errors import LostClaim
from researchcopilot.core.models import Claim
from researchcopilot.storage.db import Database
from researchcopilot.storage.sql import load

_SQL = load("steps")


async def read_steps(db: Database, run_id: str) -> dict[str, Any]:
    """What earlier claims of this run have kept, by name."""
    return dict(await db.rows(_SQL["read"], {"run_id": run_id}))


async def record_step(db: Database, claim: Claim, name: str, value: str) -> Any:
    """Keep `value` (JSON text) unless a value is kept already; the value that is kept.

    Raises LostClaim when the run is no longer this claim's.
    """
    rows = await db.rows(
        _SQL["record"],
        {
            "run_id": claim.run_id,
            "claim_no": claim.claim_no,
            "worker_id": claim.worker_id,
            "name": name,
            "value": value,
        },
    )
    if not rows:
        raise LostClaim
    return rows[0][0]
