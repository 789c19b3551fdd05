"""Dead letters: failed runs that nobody has dealt with, as groups of one kind of failure.

They leave by a replay (a new run; the dead letter says which) or by being discarded.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Replayed
from researchcopilot.storage import moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.push import Pusher
from researchcopilot.storage.sql import load

_SQL = load("dead_letters")
BATCH = 500


@dataclass(frozen=True, slots=True)
class Filter:
    """Which dead letters of a workspace; None means any."""

    workspace_id: int
    fingerprint: str | None = None
    agent: str | None = None
    queue: str | None = None
    error_type: str | None = None
    failed_after: datetime | None = None
    failed_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Failures of one kind. `run_ids`: the newest five; `message`: that of the newest."""

    fingerprint: str
    agent: str
    error_type: str | None
    message: str | None
    count: int
    first_failed_at: datetime
    last_failed_at: datetime
    run_ids: Sequence[str]


async def groups(db: Database, wanted: Filter, limit: int) -> list[DeadLetters]:
    """The groups, largest first."""
    rows = await db.rows(_SQL["groups"], {**asdict(wanted), "limit": limit})
    return [DeadLetters(*row) for row in rows]


async def count(db: Database, workspace_id: int) -> int:
    [(number,)] = await db.rows(_SQL["count"], {"workspace_id": workspace_id})
    return int(number)


async def matching(db: Database, wanted: Filter, limit: int) -> list[str]:
    """Their run ids, those that failed first before the others."""
    return [row[0] for row in await db.rows(_SQL["ids"], {**asdict(wanted), "limit": limit})]


async def replay(
    db: Database, pusher: Pusher, workspace_id: int, run_ids: Sequence[str], *, fresh: bool
) -> list[Replayed]:
    """A new run for each; see `replay_1`. An id of another workspace has no answer."""
    pairs = [(run_id, new_id()) for run_id in run_ids]
    done, made = await moves.replay(db, workspace_id, pairs, fresh=fresh)
    pusher.push(made)
    return done


async def discard(db: Database, workspace_id: int, run_ids: Sequence[str]) -> list[str]:
    """Deal with them by deciding that nothing is to be done; the ids that were dead letters."""
    rows = await db.rows(_SQL["discard"], {"workspace_id": workspace_id, "run_ids": list(run_ids)})
    return [row[0] for row in rows]
