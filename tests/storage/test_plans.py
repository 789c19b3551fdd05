"""The plans of the moves, which are made when a connection first needs them and stay with it.

On the first day that is when every table is empty. Then reading a whole table or index costs less
than looking one row up; a minute later, under load, such a plan made the way in four times slower
and the way out six times, until Postgres had counted the rows.
"""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from tests.support import new_run

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import IdempotencyKey, NewRun, Outcome, Submission
from researchcopilot.core.settings import Settings
from researchcopilot.storage import moves, objects
from researchcopilot.storage.db import Database
from researchcopilot.storage.objects import Owner
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.submit import Submitter

pytestmark = pytest.mark.anyio
GROUP = 8
RUNS = 4000
PER_RUN = 200  # rows and index entries; a single look at everything would be 500 more
# Queued and ended ones, in sessions of their own, with a claim each.
FILL = b"""
WITH made AS MATERIALIZED (
    SELECT gen_random_uuid() AS run_id, gen_random_uuid() AS session_id, n
    FROM generate_series(1, %(n)s) n
), opened AS (
    INSERT INTO sessions (session_id, workspace_id) SELECT session_id, 1 FROM made
), keys AS (
    INSERT INTO idempotency_keys (workspace_id, route, key, body_hash, run_ids)
    SELECT 1, 'runs', run_id::text, '', ARRAY[run_id] FROM made
), elsewhere AS (
    INSERT INTO objects (uid, kind, cluster, namespace, name, workspace_id)
    SELECT session_id, 'ResearchRun', 'default', 'elsewhere', session_id::text, 1 FROM made
), asked AS (
    INSERT INTO object_runs (uid, generation, asked, run_id)
    SELECT session_id, 1, '', run_id FROM made
), tried AS (
    INSERT INTO claims (run_id, claim_no, workspace_id, worker_id, claim_id, started_at)
    SELECT run_id, 1, 1, gen_random_uuid(), gen_random_uuid(), now() FROM made
)
INSERT INTO runs (run_id, workspace_id, session_id, agent, queue, serial, status, input,
                  max_attempts, created_at, run_at, ready_at, deadline, finished_at, result)
SELECT run_id, 1, session_id, 'echo', 'runs', true,
       CASE WHEN n %% 2 = 0 THEN 'queued' ELSE 'succeeded' END, '"x"', 3, now(), now(), now(),
       now() + interval '1 day', CASE WHEN n %% 2 = 1 THEN now() END,
       CASE WHEN n %% 2 = 1 THEN '1'::jsonb END
FROM made
"""
LOOKED_AT = b"""
SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables)
     + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes)
"""


@pytest.fixture
async def lone(settings: Settings, anyio_backend: str) -> AsyncIterator[Database]:
    """One connection, and with it all of its plans."""
    db = Database(replace(settings.database, pool=1))
    await db.open()
    try:
        yield db
    finally:
        await db.close()


@pytest.mark.parametrize("counted", [False, True], ids=["not counted", "counted"])
@pytest.mark.parametrize("first", [0, 1, 8, 500])
async def test_a_plan_of_the_first_day_is_right_on_the_second(
    lone: Database, db: Database, queue: Queue, first: int, counted: bool
) -> None:
    """Protects: however many runs there were when it was made. Where autovacuum had just counted
    one, a call for a group still reads everything, until it counts again a minute later: once or
    twice, and not once for each run."""
    await db.execute(FILL, {"n": first})
    if counted:
        await db.execute(b"VACUUM ANALYZE")
    await Life(lone, queue).all()
    await db.execute(FILL, {"n": RUNS})
    life = Life(lone, queue)
    await life.all()
    assert len(life.read) == 14
    most = 3 * RUNS if counted else GROUP * PER_RUN
    assert {move: rows for move, rows in life.read.items() if rows > most} == {}


class Life:
    """Every move on a group of runs; `read` tells how many rows and entries each has looked at."""

    def __init__(self, db: Database, queue: Queue) -> None:
        self.db = db
        self.submitter = Submitter(db, queue)
        self.worker = new_id()
        self.read: dict[str, int] = {}
        self._before = 0

    async def all(self) -> None:
        self._before = await self._looked_at()
        ids = await self.submit("submit")
        await self.submit("submit, and reject", on_conflict="reject")
        await self.submit("submit, and cancel", on_conflict="cancel_previous")
        await self.submit_objects()
        await self.claim(ids, "claim")
        await self.db.rows(
            b"SELECT * FROM renew_2(%(w)s, %(ids)s, %(ones)s, '1 min')",
            {"w": self.worker, "ids": ids, "ones": [1] * GROUP},
        )
        await self.note("renew")
        await self.finish(ids, 1, "release")
        await self.claim(ids, "claim again", lease_s=-1.0)
        await moves.reclaim(self.db, limit=500, max_losses=3)
        await self.note("reclaim")
        await self.claim(ids, "claim for the third time")
        await self.finish(ids, 3, "failed")
        pairs = [(run_id, new_id()) for run_id in ids]
        await moves.replay(self.db, 1, pairs, fresh=False)
        await self.note("replay")
        await moves.cancel(self.db, 1, [new for _, new in pairs])
        await self.note("cancel")
        await moves.expire(self.db, limit=500)
        await self.note("expire")
        await self.submitter.close()

    async def submit(self, move: str, **fields: Any) -> list[str]:
        runs = [new_run(**fields) for _ in range(GROUP)]
        for run in runs:
            await self.submitter(Submission((run,), self._key(run)))
        await self.note(move)
        return [run.run_id for run in runs]

    async def submit_objects(self) -> None:
        for _ in range(GROUP):
            uid = new_id()
            owner = Owner(uid, "ResearchRun", "default", "research", uid, 1)
            await objects.submit(
                self.db, self.submitter.pusher, owner, new_run(), generation=1, asked="a", quota=99
            )
        await self.note("submit an object")

    def _key(self, run: NewRun) -> IdempotencyKey:
        return IdempotencyKey(1, "runs", run.run_id, "")

    async def claim(self, ids: list[str], move: str, lease_s: float = 60.0) -> None:
        found = await moves.claim(
            self.db, ids, worker_id=self.worker, claim_id=new_id(), lease_s=lease_s
        )
        assert [verdict.verdict for verdict in found] == ["claimed"] * GROUP
        await self.note(move)

    async def finish(self, ids: list[str], claim_no: int, kind: str) -> None:
        error = {"type": "ValueError", "message": "x"} if kind == "failed" else None
        outcomes = [Outcome(run_id, claim_no, self.worker, kind, error=error) for run_id in ids]
        await moves.finish(self.db, self.worker, outcomes)
        await self.note(f"finish: {kind}")

    async def note(self, move: str) -> None:
        now = await self._looked_at()
        self.read[move] = now - self._before
        self._before = now

    async def _looked_at(self) -> int:
        await self.db.rows(b"SELECT pg_stat_force_next_flush()")
        [(number,)] = await self.db.rows(LOOKED_AT)
        return int(number)
