"""A Postgres that takes what is sent and answers nothing, as behind a pooler that has lost its
server: no time-out of the server or of TCP ends that. Our own does, and the server is then away."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
from tests.chaos.detour import line_to, over
from tests.chaos.proxy import Line, Way

from researchcopilot.core.errors import Unavailable
from researchcopilot.core.settings import DatabaseSettings
from researchcopilot.storage import db as database
from researchcopilot.storage import migrate as migrations
from researchcopilot.storage.db import Database, Locked
from researchcopilot.storage.migrate import Migration
from researchcopilot.storage.renewal import Renewer
from researchcopilot.storage.silence import script

pytestmark = pytest.mark.anyio


@pytest.fixture
def line(database_url: str) -> Iterator[Line]:
    with line_to(database_url) as line:
        yield line


def through(line: Line, url: str) -> DatabaseSettings:
    return DatabaseSettings(url=over(line, url), statement_timeout_s=1.0)


async def test_a_statement_that_nobody_answers_ends(line: Line, database_url: str) -> None:
    """Protects: a finish that waits for ever would keep all that come after it waiting too."""
    db = Database(replace(through(line, database_url), pool=2))
    await db.open()
    try:
        assert await db.rows(b"SELECT 1") == [(1,)]
        with line.closed(Way.BACK, late=False), pytest.raises(Unavailable):
            await asyncio.wait_for(db.rows(b"SELECT 1"), 15)
        assert await db.rows(b"SELECT 1") == [(1,)]
    finally:
        await db.close()


@pytest.fixture
async def hasty(
    line: Line, database_url: str, monkeypatch: pytest.MonkeyPatch, anyio_backend: str
) -> AsyncIterator[Database]:
    """It gives up after 1.2 s; a statement may take a second."""
    monkeypatch.setattr(database, "MARGIN_S", 0.2)
    db = Database(replace(through(line, database_url), pool=1))
    await db.open()
    try:
        yield db
    finally:
        await db.close()


async def test_what_is_answered_bit_by_bit_is_heard_to_its_end(hasty: Database) -> None:
    """Protects: many statements that are sent together take longer than any of them may."""
    mine = await hasty.rows(b"SELECT pg_backend_pid()")
    query = b"SELECT pg_sleep(%s), repeat('x', 10000)"
    async with hasty.connection() as connection, connection.cursor() as cursor:
        await cursor.executemany(query, [(0.1,) for _ in range(20)])
    assert await hasty.rows(b"SELECT pg_backend_pid()") == mine


async def test_a_wait_for_a_lock_is_not_silence(hasty: Database, db: Database) -> None:
    """Protects: as long as the server would still answer, nobody is cut off."""
    mine = await hasty.rows(b"SELECT pg_backend_pid()")
    async with db.transaction() as connection:
        await connection.execute("LOCK TABLE workers")
        with pytest.raises(Locked):
            await hasty.execute(b"DELETE FROM workers")
    with pytest.raises(Unavailable, match="statement time-out"):
        await hasty.rows(b"SELECT pg_sleep(5)")
    assert await hasty.rows(b"SELECT pg_backend_pid()") == mine


async def test_a_long_migration_of_short_statements_is_waited_for(
    hasty: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects: three indexes of a large table in one file, each within the time-out."""
    text = "SELECT pg_sleep(0.7);\n" * 3
    long = [Migration("pre/9999_long.sql", text, repeats=False)]
    monkeypatch.setattr(migrations, "migrations", lambda phases: long)
    assert await migrations.migrate(hasty) == ["pre/9999_long.sql"]


async def test_a_script_that_nobody_answers_ends(hasty: Database, line: Line) -> None:
    """Protects: more patience is not patience without an end."""
    text = "SELECT 1;\n" * 3

    async def run() -> None:
        async with hasty.connection() as connection:
            await connection.execute("SELECT 1")
            with line.closed(Way.BACK, late=False), script(connection, text):
                await connection.execute(text.encode())

    with pytest.raises(Unavailable):
        await asyncio.wait_for(run(), 15)
    assert await hasty.rows(b"SELECT 1") == [(1,)]


async def test_a_renewal_that_nobody_answers_ends(line: Line, database_url: str) -> None:
    """Protects: leases are renewed over another connection before they run out."""
    renewer = Renewer(through(line, database_url), 0.5)
    worker_id = "00000000-0000-0000-0000-000000000001"
    assert not renewer.beat(worker_id)
    with line.closed(Way.BACK, late=False), pytest.raises(Unavailable):
        await asyncio.wait_for(asyncio.to_thread(renewer.beat, worker_id), 10)
    assert not renewer.beat(worker_id)
    renewer.close()
