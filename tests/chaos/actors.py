"""Who works on the runs in a protocol test: submitters, workers, a janitor, somebody who cancels.

They send the product's moves as the product sends them, and then misbehave as networks and
machines do: a call is sent again as if its answer had been lost, a worker forgets what it holds,
comes back too late, finishes twice. Every verdict is compared with what it may be; what may not
be is a complaint, and each complaint is a fault of the product.
"""

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta

from tests.chaos.handling import Worker
from tests.chaos.scene import Program, Report, Scene

from researchcopilot.core.errors import BadInput, Conflict, ResearchCopilotError
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import (
    Cancelled,
    Due,
    IdempotencyKey,
    NewRun,
    Submission,
    Submitted,
)
from researchcopilot.core.settings import RedisSettings
from researchcopilot.runtime.batch import Group
from researchcopilot.storage import moves
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.submit import Submitter

# How many unfinished runs there may be, in turn: a race for the only one in line needs short lines,
# a race of groups needs long ones.
BACKLOGS = (5, 150, 10, 40)
PHASE_S = 0.8
NOWHERE = "redis://127.0.0.1:1/0"  # hints are not what is tested here
# What a worker is given to judge, as a queue would: what is queued and not parked; and now and
# then anything at all, since a list can hold an id twice, or one that was parked meanwhile.
_HINTED = b"""
    SELECT run_id FROM runs WHERE status = 'queued' AND NOT parked
    AND run_at <= clock_timestamp() + %(ahead)s * interval '1 second'
    ORDER BY random() LIMIT %(limit)s"""
_WAITING = b"""
    SELECT run_id FROM runs WHERE status = 'queued' ORDER BY random() LIMIT %(limit)s"""
_ANY = b"SELECT run_id FROM runs ORDER BY seq DESC LIMIT %(limit)s"
_UNFINISHED = b"SELECT count(*) FROM runs WHERE status IN ('queued', 'running')"
_UNDER_WAY = b"""
    SELECT run_id FROM runs WHERE status IN ('queued', 'running')
    ORDER BY random() LIMIT %(limit)s"""
# Those whose end must give a turn on: next in line, or between two attempts.
_AHEAD = b"""
    SELECT run_id FROM runs WHERE status = 'queued' AND serial AND NOT parked
    ORDER BY random() LIMIT %(limit)s"""
_FORGOTTEN = b"SELECT session_id FROM watch_forgotten"


def work(program: Program, number: int) -> Report:
    """One process, to its end."""
    logging.disable(logging.CRITICAL)  # poisoned groups are meant
    return asyncio.run(Actors(program, number).run())


class Actors(Scene):
    """All actors of one process, until the time is over and everything has ended."""

    def __init__(self, program: Program, number: int) -> None:
        super().__init__(program, number)
        self.submitting = True
        self.working = True
        order = random.Random(program.seed)
        self.sessions = [
            str(uuid.UUID(int=order.getrandbits(128), version=4)) for _ in range(program.sessions)
        ]
        # Its `_send` is what is tested here, in groups of the size that is asked for.
        submitter = Submitter(self.db, Queue(RedisSettings(url=NOWHERE)))
        self._submit: Group[Submission, Submitted | ResearchCopilotError] = Group(
            submitter._send, again=self.again, limits=self.limits, lanes=self.lanes
        )

    async def run(self) -> Report:
        await self.db.open()
        async with asyncio.TaskGroup() as tasks:
            for actor in (self._submitter, self._worker):
                tasks.create_task(self._guarded(actor))
                tasks.create_task(self._guarded(actor))
            tasks.create_task(self._guarded(self._janitor))
            tasks.create_task(self._guarded(self._canceller))
            await asyncio.sleep(self.program.seconds)
            self.submitting = False
            await self._drained()
            self.working = False
        self.renewer.close()
        await self.db.close()
        return self.report

    async def _guarded(self, actor: Callable[[], Awaitable[None]]) -> None:
        """What an actor does not expect is a complaint, and the others go on."""
        while self.working:
            try:
                await actor()
                return
            except Exception as error:
                self.report.complain(f"{actor.__name__.strip('_')}: {_innermost(error)!r}")

    async def _drained(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self.program.drain_s
        while loop.time() < end:
            [(unfinished,)] = await self.db.rows(_UNFINISHED)
            if not unfinished:
                return
            await asyncio.sleep(0.05)

    # Submitting

    async def _submitter(self) -> None:
        while self.submitting:
            limit = BACKLOGS[int(time.monotonic() / PHASE_S) % len(BACKLOGS)]
            [(unfinished,)] = await self.db.rows(_UNFINISHED)
            if unfinished >= limit:
                await asyncio.sleep(0.01)
                continue
            many = self.random.randint(1, max(1, min(self.program.group // 2, limit // 4)))
            await asyncio.gather(*(self._submit_one() for _ in range(many)))

    async def _submit_one(self) -> None:
        submission = self._submission()
        sendings = [submission] * (2 if self.maybe(0.1) else 1)  # an answer was lost
        answers = [await self._group_submit(sending) for sending in sendings]
        for answer in answers:
            self._judge_submit(submission, answer)
        # Who was refused because the session was busy may find it free the second time.
        first, second = answers[0], answers[-1]
        if _made(first) != _made(second) and not isinstance(first, Conflict):
            self.report.complain(f"a submit sent twice: {first!r} and then {second!r}")

    async def _group_submit(self, submission: Submission) -> Submitted | ResearchCopilotError:
        return await self._submit(submission, rows=len(submission.runs))

    def _judge_submit(
        self, submission: Submission, answer: Submitted | ResearchCopilotError
    ) -> None:
        key = submission.idempotency
        if isinstance(answer, Submitted):
            self.report.counts["replayed" if answer.replayed else "submitted"] += 1
            self.report.made.update(answer.run_ids)
            if key is not None:
                self.report.keys.setdefault(key.key, set()).add(answer.run_ids)
        elif isinstance(answer, BadInput) and answer.code == "idempotency_mismatch" and key:
            self.report.counts["mismatch"] += 1
        elif isinstance(answer, Conflict) and submission.runs[0].on_conflict == "reject":
            self.report.counts["rejected"] += 1
        else:
            self.report.complain(f"a submit was answered by {answer!r}")

    def _submission(self) -> Submission:
        key = None
        if self.maybe(0.5):
            word = f"k{self.random.randrange(200)}"
            body = "other" if self.maybe(0.1) else "same"
            key = IdempotencyKey(1, "POST /v1/runs", word, body)
        how = self.random.choices(("queue", "reject", "cancel_previous"), (90, 7, 3))[0]
        number = self.random.randint(1, 3) if how == "queue" else 1
        return Submission(tuple(self._new_run(how) for _ in range(number)), key)

    def _new_run(self, on_conflict: str) -> NewRun:
        deadline = None
        if self.maybe(0.15):
            deadline = datetime.now(UTC) + timedelta(seconds=self.random.uniform(0, 0.3))
        return NewRun(
            run_id=new_id(), workspace_id=1, agent="echo", queue="runs", input="why?",
            session_id=self.random.choice(self.sessions),
            serial=on_conflict != "queue" or self.maybe(0.7), on_conflict=on_conflict,
            max_attempts=self.random.randint(1, 4), deadline=deadline,
            delay_s=self.random.uniform(0, 0.1) if self.maybe(0.3) else None,
        )  # fmt: skip

    # Working

    async def _worker(self) -> None:
        worker = Worker(self, new_id())
        while self.working:
            run_ids = await self._hints()
            if run_ids:
                await worker.take(run_ids)
            else:
                await asyncio.sleep(0.005)

    async def _hints(self) -> list[str]:
        # Small groups meet each other at the session, large ones already at the runs.
        many = self.random.choice((1, 2, self.random.randint(1, self.program.group)))
        query = self.random.choice((_HINTED, _WAITING, _ANY)) if self.submitting else _HINTED
        rows = await self.db.rows(query, {"limit": many, "ahead": self.random.choice((0, 0.05))})
        return [run_id for (run_id,) in rows]

    async def _janitor(self) -> None:
        while self.working:
            limit = self.random.choice((1, 10, 100))
            taken = await self.patiently(self._sweep("reclaim", limit, max_losses=4))
            expired = await self.patiently(self._sweep("expire", limit))
            for name, moved in (("taken back", taken), ("expired", expired)):
                self.report.counts["freed"] += len(moved.tail)
                for _, status in moved.verdicts:
                    self.report.counts[f"{name}: {status}"] += 1
            for (session_id,) in await self.db.rows(_FORGOTTEN):
                self.report.complain(f"session {session_id} has parked runs and nobody's turn")
            await asyncio.sleep(self.random.uniform(0, 0.03))

    def _cancel(
        self, run_ids: Sequence[str]
    ) -> Callable[[], Awaitable[tuple[list[Cancelled], list[Due], list[tuple[str, str]]]]]:
        return lambda: moves.cancel(self.db, 1, run_ids)

    def _sweep(self, name: str, limit: int, **more: int) -> Callable[[], Awaitable[moves.Moved]]:
        return lambda: getattr(moves, name)(self.db, limit=limit, **more)

    async def _canceller(self) -> None:
        while self.submitting:
            limit = self.random.choice((1, 1, 3))
            query = self.random.choice((_UNDER_WAY, _AHEAD))
            rows = await self.db.rows(query, {"limit": limit})
            asked = [run_id for (run_id,) in rows]
            verdicts, freed, _ = await self.patiently(self._cancel(asked))
            if sorted(verdict.run_id for verdict in verdicts) != sorted(asked):
                self.report.complain(f"{len(verdicts)} verdicts for {len(asked)} ids of a cancel")
            for verdict in verdicts:
                self.report.counts[f"cancel: {verdict.verdict}"] += 1
            self.report.counts["freed"] += len(freed)
            await asyncio.sleep(self.random.uniform(0, 0.3))


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _made(answer: Submitted | ResearchCopilotError) -> object:
    """What was made. When it is due is left out: a retry may have changed that meanwhile."""
    if isinstance(answer, Submitted):
        return answer.run_ids, answer.replayed, answer.created_at
    return repr(answer)
