"""Workers beside somebody who holds a row's lock and does not let go: a person with an open
transaction, a backend that hangs. It costs the run that is locked, and no other."""

from collections.abc import AsyncIterator
from dataclasses import replace

import psycopg
import pytest
from tests.support import Gate, echo, ended, eventually, new_run, row, submit, working

from researchcopilot.core.ids import new_id
from researchcopilot.core.settings import Settings
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


async def test_a_run_that_somebody_has_locked_costs_no_other_its_lease(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """Protects: one lock that is held for long does not keep a worker from renewing all it has."""
    gate = Gate()
    async with working(settings, db, queue, {"it": gate}):
        locked, other = await submit(db, queue, new_run(agent="it"), new_run(agent="it"))
        await eventually(lambda: len(gate.inside) == 2)
        async with await psycopg.AsyncConnection.connect(settings.database.url) as somebody:
            await somebody.execute("SELECT 1 FROM runs WHERE run_id = %s FOR UPDATE", (locked,))
            first = (await row(db, other))["lease_until"]

            async def renewed_for_long() -> bool:
                found = await db.one(
                    b"SELECT lease_until, lease_until > clock_timestamp() AS good FROM runs"
                    b" WHERE run_id = %(r)s",
                    {"r": other},
                )
                assert found is not None
                assert found["good"], "its lease ran out"
                long: bool = (found["lease_until"] - first).total_seconds() > 3
                return long

            await eventually(renewed_for_long)
        gate.open.set()
        for run_id in (locked, other):
            assert (await ended(db, run_id))["claim_no"] == 1


@pytest.fixture
async def soon(settings: Settings, anyio_backend: str) -> AsyncIterator[Database]:
    """Waits half a second for a lock."""
    db = Database(replace(settings.database, statement_timeout_s=1.0))
    await db.open()
    try:
        yield db
    finally:
        await db.close()


async def test_a_session_that_somebody_has_locked_keeps_no_other_from_its_end(
    settings: Settings, db: Database, soon: Database, queue: Queue
) -> None:
    """Protects: neither the ends nor the claims that go together with it wait for that lock; and
    its own run ends as soon as it is let go."""
    gate = Gate()
    session = new_id()
    async with working(settings, soon, queue, {"it": gate, "echo": echo}, queues={"runs": 8}):
        locked, *others = await submit(
            db, queue, new_run(session, agent="it"), *(new_run(agent="it") for _ in range(3))
        )
        await eventually(lambda: len(gate.inside) == 4)
        async with await psycopg.AsyncConnection.connect(settings.database.url) as somebody:
            await somebody.execute(
                "SELECT 1 FROM sessions WHERE session_id = %s FOR UPDATE", (session,)
            )
            gate.open.set()
            for run_id in others:
                assert (await ended(db, run_id, 20))["status"] == "succeeded"
            more = await submit(db, queue, *(new_run() for _ in range(3)))
            for run_id in more:
                assert (await ended(db, run_id, 20))["status"] == "succeeded"
            assert (await row(db, locked))["status"] == "running"
        assert (await ended(db, locked, 20))["claim_no"] == 1
