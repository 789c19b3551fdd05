"""The moves of a run that workers and the janitor make; each is one call, safe to send twice.

The functions behind them (migrations/functions) lock in order, look again after the lock, and give
a verdict for every id. This room turns rows into records and nothing else; `submit` has its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from researchcopilot.core.models import (
    Cancelled,
    Claim,
    Due,
    Entry,
    Finished,
    Outcome,
    Replayed,
    Verdict,
)
from researchcopilot.core.text import dumps
from researchcopilot.storage.db import Database
from researchcopilot.storage.sql import load

_SQL = load("moves")


@dataclass(frozen=True, slots=True)
class Gone:
    """A worker that somebody knows to be dead: why, as a word and as a sentence that has the worker
    before it ("its Pod was deleted")."""

    worker_id: str
    reason: str
    cause: str


@dataclass(frozen=True, slots=True)
class Moved:
    """What a sweep did: the verdicts (run_id, new status) with a reason for each, whose hands they
    were in (of a reclaim), and what has to be pushed for it.

    `head` goes to the head of its queue (it has waited already), `tail` to the tail (unparked).
    `recovery_s`, of a reclaim: how long each worker had given no sign of life. None: not known.
    """

    verdicts: tuple[tuple[str, str], ...]
    reasons: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    head: tuple[Due, ...] = ()
    tail: tuple[Due, ...] = ()
    recovery_s: tuple[float | None, ...] = ()


async def claim(
    db: Database, run_ids: Sequence[str], *, worker_id: str, claim_id: str, lease_s: float
) -> list[Verdict]:
    """queued → running for those that may; a verdict for each distinct id.

    `claim_id` is made by the worker for this call: sending it again gives `mine` for what the
    first sending had claimed.
    """
    rows = await db.rows(
        _SQL["claim"],
        {
            "run_ids": list(run_ids),
            "worker_id": worker_id,
            "claim_id": claim_id,
            "lease_s": lease_s,
        },
    )
    return [_verdict(worker_id, row) for row in rows]


def _verdict(worker_id: str, row: tuple[Any, ...]) -> Verdict:
    (run_id, verdict, wait_s, claim_no, workspace_id, session_id, queue, agent, input_, metadata,
     attempts, max_attempts, losses, timeout_s, deadline, created_at, ready_at) = row  # fmt: skip
    if verdict not in ("claimed", "mine"):
        return Verdict(run_id, verdict, wait_s=wait_s or 0.0)
    return Verdict(
        run_id,
        verdict,
        Claim(run_id, claim_no, worker_id, workspace_id, session_id, queue, agent, input_, metadata,
              attempts, max_attempts, losses, timeout_s, deadline, created_at, ready_at),
        wait_s or 0.0,
    )  # fmt: skip


async def finish(
    db: Database, worker_id: str, outcomes: Sequence[Outcome]
) -> tuple[list[Finished], list[Due]]:
    """running → where each outcome leads; the verdicts in order, and what has to be pushed: what
    was unparked, and what follows the runs that succeeded."""
    rows = await db.rows(
        _SQL["finish"],
        {
            "worker_id": worker_id,
            "run_ids": [outcome.run_id for outcome in outcomes],
            "claim_nos": [outcome.claim_no for outcome in outcomes],
            "kinds": [outcome.kind for outcome in outcomes],
            "results": [outcome.result for outcome in outcomes],
            "errors": [dumps(o.error) if o.error is not None else None for o in outcomes],
            "delays": [outcome.delay_s for outcome in outcomes],
            "follow_ups": [outcome.follow_up for outcome in outcomes],
        },
    )
    # By run and claim: a worker may end one run twice, the claim it has lost and the one it has.
    verdicts = {(row[0], row[5]): Finished(row[0], row[1]) for row in rows if row[1] != "push"}
    pushes = [Due(row[3], Entry(row[2], row[0]), row[4]) for row in rows if row[1] == "push"]
    return [verdicts[outcome.run_id, outcome.claim_no] for outcome in outcomes], pushes


async def cancel(
    db: Database, workspace_id: int, run_ids: Sequence[str]
) -> tuple[list[Cancelled], list[Due], list[tuple[str, str]]]:
    """queued → cancelled; running is asked to stop. Ids of other workspaces are left out.

    Returns the verdicts, what was unparked, and (worker_id, run_id) of those to be told.
    """
    rows = await db.rows(_SQL["cancel"], {"workspace_id": workspace_id, "run_ids": list(run_ids)})
    verdicts = [Cancelled(row[0], row[1]) for row in rows if row[1] != "push"]
    unparked = [Due(row[3], Entry(row[2], row[0])) for row in rows if row[1] == "push"]
    asked = [(row[4], row[0]) for row in rows if row[1] == "cancelling"]
    return verdicts, unparked, asked


async def replay(
    db: Database, workspace_id: int, pairs: Sequence[tuple[str, str]], *, fresh: bool
) -> tuple[list[Replayed], list[Due]]:
    """A new run for each dead letter, (run_id, id of the new one); and what has to be pushed."""
    rows = await db.rows(
        _SQL["replay"],
        {
            "workspace_id": workspace_id,
            "run_ids": [run_id for run_id, _ in pairs],
            "new_ids": [new_id for _, new_id in pairs],
            "fresh": fresh,
        },
    )
    made = [Due(row[3], Entry(workspace_id, row[2])) for row in rows if row[1] == "replayed"]
    return [Replayed(row[0], row[1], row[2]) for row in rows], made


async def reclaim(
    db: Database, *, limit: int, max_losses: int, gone: Sequence[Gone] | None = None
) -> Moved:
    """Take back at most `limit` runs: those that the `gone` hold, whatever their leases, with the
    reasons given; without `gone` those whose lease has run out: left, silent, forgotten."""
    params: dict[str, Any] = {"limit": limit, "max_losses": max_losses}
    for name, attribute in (("workers", "worker_id"), ("reasons", "reason"), ("causes", "cause")):
        params[name] = None if gone is None else [getattr(worker, attribute) for worker in gone]
    rows = await db.rows(_SQL["reclaim"], params)
    mine = [row for row in rows if row[1] != "push"]
    return replace(
        _moved(rows),
        workers=tuple(row[5] for row in mine),
        recovery_s=tuple(row[6] for row in mine),
    )


async def expire(db: Database, *, limit: int) -> Moved:
    """Fail queued runs that are past their deadline: at most `limit`. Reasons: never_started,
    deadline."""
    return _moved(await db.rows(_SQL["expire"], {"limit": limit}))


async def free(db: Database, session_ids: Sequence[str]) -> Moved:
    """Free the next in line of sessions that nobody would free; see `free_1`. None is expected."""
    return _moved(await db.rows(_SQL["free"], {"session_ids": list(session_ids)}))


def _moved(rows: Sequence[tuple[Any, ...]]) -> Moved:
    def due(row: tuple[Any, ...]) -> Due:
        return Due(row[3], Entry(row[2], row[0]))

    return Moved(
        tuple((row[0], row[1]) for row in rows if row[1] != "push"),
        tuple(row[4] for row in rows if row[1] != "push"),
        head=tuple(due(row) for row in rows if row[1] == "queued"),
        tail=tuple(due(row) for row in rows if row[1] == "push"),
    )
