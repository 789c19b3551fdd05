"""What workers have finished, by agent and minute: rows of each worker's own, written once."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from researchcopilot.core.text import dumps
from researchcopilot.storage.db import Database
from researchcopilot.storage.sql import load

_SQL = load("stats")


@dataclass(frozen=True, slots=True)
class Finished:
    """Claims of one agent in one workspace, and the seconds that all of them took."""

    workspace_id: int
    agent: str
    succeeded: int
    failed: int
    cancelled: int
    retried: int
    seconds: float


async def write(db: Database, worker_id: str, part: int, counts: Sequence[Finished]) -> None:
    """Part `part` of this worker; a part that is there already is left as it is."""
    rows = dumps([asdict(count) for count in counts])
    await db.execute(_SQL["write"], {"worker_id": worker_id, "part": part, "rows": rows})
