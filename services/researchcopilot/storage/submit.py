"""Submit: nothing → queued. One commit for a group of requests, then the hints to Redis.

The answer waits for the commit and never for Redis: a push that fails is repeated in the
background for a while, and what is lost for good (the process dies) is found by the janitor's
probe. Ids are made before the group, so that a group can be sent twice.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from prometheus_client import Counter

from researchcopilot.core.errors import (
    BadInput,
    Conflict,
    NotFound,
    ResearchCopilotError,
    Unavailable,
)
from researchcopilot.core.models import Due, Entry, NewRun, Submission, Submitted
from researchcopilot.core.text import dumps
from researchcopilot.runtime.batch import Group, Limits
from researchcopilot.storage.db import Database, Locked
from researchcopilot.storage.push import Pusher
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.sql import load

_SQL = load("moves")
STRICT = frozenset({"reject", "cancel_previous"})
log = logging.getLogger(__name__)
SUBMITTED = Counter("researchcopilot_runs_submitted_total", "Runs that were accepted", ["queue"])


class _ClaimedJustNow(ResearchCopilotError):
    """The unclaimed run of this unique_key was in the way, and is claimed by now: again."""


class Submitter:
    """Groups submissions of one process; close it to wait for the pushes under way."""

    def __init__(self, db: Database, queue: Queue, *, max_waiting: int = 10_000) -> None:
        self._db = db
        self._group: Group[Submission, Submitted | ResearchCopilotError] = Group(
            self._send,
            again=lambda error: isinstance(error, Unavailable),
            apart=lambda error: isinstance(error, Locked),
            limits=Limits(max_waiting=max_waiting, patience_s=10.0),
            name="submit",
        )
        self.pusher = Pusher(queue)

    @property
    def group(self) -> Group[Submission, Submitted | ResearchCopilotError]:
        return self._group

    async def __call__(self, submission: Submission) -> Submitted:
        """All runs of the submission or none.

        Raises BadInput `idempotency_mismatch` (the key was used with another body), NotFound (a
        session of another workspace), Busy (too many wait), Unavailable (Postgres is away).
        """
        answer = await self._answer(submission)
        if isinstance(answer, ResearchCopilotError):
            raise answer
        if not answer.replayed:
            accepted(self.pusher, submission, answer)
        return answer

    async def _answer(self, submission: Submission) -> Submitted | ResearchCopilotError:
        while True:
            answer = await self._group(
                submission, rows=len(submission.runs), size=_size(submission)
            )
            if not isinstance(answer, _ClaimedJustNow):
                return answer

    async def close(self) -> None:
        await self._group.close()
        await self.pusher.close()

    async def _send(
        self, submissions: Sequence[Submission]
    ) -> list[Submitted | ResearchCopilotError]:
        answers: dict[int, Submitted | ResearchCopilotError] = {}
        for wave in _waves(submissions):
            answers.update(await self._send_wave(wave))
        return [answers[number] for number in range(len(submissions))]

    async def _send_wave(
        self, wave: Sequence[tuple[int, Submission]]
    ) -> dict[int, Submitted | ResearchCopilotError]:
        members = [member_fields(number, item) for number, item in wave]
        runs = [run_fields(number, run) for number, item in wave for run in item.runs]
        rows = await self._db.rows(
            _SQL["submit"], {"members": json.dumps(members), "runs": dumps(runs)}
        )
        self.pusher.tell([(row[2][1], row[2][0]) for row in rows if row[1] == "cancelling"])
        items = dict(wave)
        return {
            row[0]: read_answer(items[row[0]], *row[1:]) for row in rows if row[1] != "cancelling"
        }


def accepted(pusher: Pusher, submission: Submission, answer: Submitted) -> None:
    """What follows the commit that made these runs: they are counted and pushed."""
    assert answer.created_at is not None
    for run in submission.runs:
        if run.run_id in answer.run_ids:  # else one of its unique key waits already
            SUBMITTED.labels(run.queue).inc()
    pusher.push(
        [
            Due(
                run.queue,
                Entry(run.workspace_id, run.run_id),
                max(0.0, (run_at - answer.created_at).total_seconds()),
            )
            for run, run_at in zip(submission.runs, answer.run_at, strict=True)
        ]
    )


def _waves(submissions: Sequence[Submission]) -> Iterator[list[tuple[int, Submission]]]:
    """Members in calls: usually one. Who rejects or cancels comes alone among those that share
    its session, since there the order of members decides. Nor do two of one key share a call: the
    second would be told of the runs of a first that is refused only later in that call."""
    waiting = list(enumerate(submissions))
    while waiting:
        wave: list[tuple[int, Submission]] = []
        left: list[tuple[int, Submission]] = []
        seen: dict[str | None, bool] = {}  # session → is somebody strict about it in this wave?
        keys: set[tuple[int, str, str] | None] = set()
        for number, item in waiting:
            strict = any(run.on_conflict in STRICT for run in item.runs)
            sessions = {run.session_id for run in item.runs} - {None}
            clash = any(session in seen and (strict or seen[session]) for session in sessions)
            clash |= item.idempotency is not None and _key(item) in keys
            keys.add(_key(item))
            (left if clash else wave).append((number, item))
            seen.update({session: strict or seen.get(session, False) for session in sessions})
        yield wave
        waiting = left


def _key(submission: Submission) -> tuple[int, str, str] | None:
    key = submission.idempotency
    return (key.workspace_id, key.route, key.key) if key else None


def _size(submission: Submission) -> int:
    """Bytes, roughly: what counts against a group's limit. A short text is not measured twice."""
    return sum(
        len(run.input) * 2 if isinstance(run.input, str) else 2000 for run in submission.runs
    )


def member_fields(number: int, submission: Submission) -> dict[str, Any]:
    """A member as submit_1 takes it."""
    key = submission.idempotency
    return {
        "member": number,
        "run_ids": [run.run_id for run in submission.runs],
        **(
            {
                "workspace_id": key.workspace_id,
                "route": key.route,
                "key": key.key,
                "body_hash": key.body_hash,
            }
            if key
            else {}
        ),
    }


def run_fields(number: int, run: NewRun) -> dict[str, Any]:
    """A run of that member as submit_1 takes it."""
    return {
        "member": number,
        "run_id": run.run_id,
        "workspace_id": run.workspace_id,
        "session_id": run.session_id,
        "agent": run.agent,
        "queue": run.queue,
        "serial": run.serial,
        "on_conflict": run.on_conflict,
        "input": run.input,
        "metadata": run.metadata,
        "max_attempts": run.max_attempts,
        "timeout_s": run.timeout_s,
        "deadline": _iso(run.deadline),
        "run_at": _iso(run.run_at),
        "delay_s": run.delay_s,
        "unique_key": run.unique_key,
    }


def _iso(time: datetime | None) -> str | None:
    return time.isoformat() if time else None


def read_answer(
    submission: Submission,
    verdict: str,
    run_ids: list[str] | None,
    created_at: datetime | None,
    run_at: list[datetime] | None,
    deadline: list[datetime] | None,
) -> Submitted | ResearchCopilotError:
    """What a row of submit_1 says of a member: what was made, or the error that it is."""
    if verdict == "mismatch":
        assert submission.idempotency is not None
        return BadInput(
            f"The key {submission.idempotency.key!r} was used before with another body. "
            "Send the same body again, or take a new key.",
            field="Idempotency-Key",
            code="idempotency_mismatch",
        )
    if verdict == "busy":
        blocking = (run_ids or ["?"])[0]
        return Conflict(
            f"The session is busy with the run {blocking}, and on_conflict is reject. Wait for "
            "that run, cancel it, or submit with queue, parallel or cancel_previous.",
            field="on_conflict",
            code="session_busy",
        )
    if verdict == "foreign":
        return NotFound("There is no such session.", field="session_id")
    if run_ids is None:
        return _ClaimedJustNow()
    return Submitted(
        tuple(run_ids),
        replayed=verdict == "replayed",
        created_at=created_at,
        run_at=tuple(run_at or ()),
        deadline=tuple(deadline or ()),
    )
