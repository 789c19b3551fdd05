"""Objects of a cluster (ResearchRun, RunSchedule) and the rows that are theirs.

What an object asks for is made once for each of its generations, whoever asks and how often. What
is made is tied to the object's uid in the same transaction, so that nothing is ever without its
object: what an operator missed while it was down is found by comparing, not by remembering.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from researchcopilot.core.errors import ResearchCopilotError
from researchcopilot.core.models import NewRun, Submission
from researchcopilot.core.states import Status
from researchcopilot.core.text import dumps
from researchcopilot.storage import moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.push import Pusher
from researchcopilot.storage.sql import load
from researchcopilot.storage.submit import accepted, member_fields, read_answer, run_fields

_SQL = load("objects")
BATCH = 500


@dataclass(frozen=True, slots=True)
class Owner:
    """An object, by the uid that no other object ever has, and the workspace of what is its."""

    uid: str
    kind: str
    cluster: str
    namespace: str
    name: str
    workspace_id: int


@dataclass(frozen=True, slots=True)
class Standing:
    """The newest run of an object as it stands; `status` None: it was removed by retention.
    `acted_on`: the newest generation that was submitted or refused."""

    uid: str
    generation: int
    acted_on: int
    asked: str
    run_id: str
    status: Status | None
    session_id: str | None
    attempts: int | None
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    parked: bool | None
    cancelling: bool
    worker: str | None
    error_type: str | None
    error_message: str | None
    answer: str | None


@dataclass(frozen=True, slots=True)
class Placed:
    """`verdict`: created, known (it has its run, or a newer generation has), gone, quota (`held`
    runs of the namespace are unfinished)."""

    verdict: str
    run_id: str | None = None
    held: int = 0


async def submit(
    db: Database,
    pusher: Pusher,
    owner: Owner,
    run: NewRun,
    *,
    generation: int,
    asked: str,
    quota: int,
) -> Placed:
    """The run of this generation; see submit_object_1. Safe twice, and from two sides at once.

    Raises NotFound and Conflict as a submit does, and Unavailable.
    """
    submission = Submission((run,))
    rows = await db.rows(
        _SQL["submit"],
        {
            "object": dumps({**asdict(owner), "generation": generation, "asked": asked}),
            "quota": quota,
            "members": dumps([member_fields(0, submission)]),
            "runs": dumps([run_fields(0, run)]),
        },
    )
    pusher.tell([(row[1][1], row[1][0]) for row in rows if row[0] == "cancelling"])
    [(verdict, run_ids, held, created_at, run_at)] = [r for r in rows if r[0] != "cancelling"]
    if verdict in ("known", "gone", "quota"):
        return Placed(verdict, run_ids and run_ids[0], held or 0)
    answer = read_answer(submission, verdict, run_ids, created_at, run_at, None)
    if isinstance(answer, ResearchCopilotError):
        raise answer
    accepted(pusher, submission, answer)
    return Placed(verdict, run.run_id)


async def standing(db: Database, uids: Sequence[str], *, excerpt: int) -> dict[str, Standing]:
    """How the runs of these objects stand, in one read. Of an answer the first characters."""
    rows = await db.dicts(_SQL["standing"], {"uids": list(uids), "excerpt": excerpt})
    return {row["uid"]: _standing(row) for row in rows}


def _standing(row: dict[str, Any]) -> Standing:
    status = row["status"]
    return Standing(**{**row, "status": Status(status) if status else None})


async def refused(db: Database, uid: str, generation: int) -> None:
    """What this generation asks for nobody gives; nor is the run of an earlier one wanted."""
    await db.execute(_SQL["refused"], {"uid": uid, "generation": generation})


async def gone(db: Database, uids: Sequence[str]) -> int:
    """These objects were deleted; how many of them had been anything to us."""
    return await db.execute(_SQL["gone"], {"uids": list(uids)})


async def vanished(
    db: Database,
    kind: str,
    uids: Sequence[str],
    *,
    cluster: str,
    namespace: str | None,
    before: datetime,
) -> int:
    """Whatever is not on this list is gone; `before`: the database's time when it was asked for."""
    return await db.execute(
        _SQL["vanished"],
        {
            "cluster": cluster,
            "kind": kind,
            "namespace": namespace,
            "uids": list(uids),
            "before": before,
        },
    )


async def cancel_unwanted(db: Database, pusher: Pusher, cluster: str) -> int:
    """Cancel runs whose object is gone or asks for something else; how many. Safe twice."""
    count = 0
    while True:
        rows = await db.rows(_SQL["unwanted"], {"cluster": cluster, "limit": BATCH})
        for workspace_id, members in groupby(rows, key=lambda row: row[0]):
            run_ids = [row[1] for row in members]
            _, unparked, asked = await moves.cancel(db, workspace_id, run_ids)
            pusher.push(unparked)
            pusher.tell(asked)
        count += len(rows)
        if len(rows) < BATCH:
            return count


async def forget(db: Database, cluster: str) -> int:
    """Objects that were deleted more than a day ago."""
    return await db.execute(_SQL["forget"], {"cluster": cluster})
