"""A Postgres that takes what is sent and answers nothing, as behind a pooler that has lost its
server: no time-out of the server or of TCP ends that. Our own does, and the server is then away."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.chaos.detour import line_to, over
from tests.chaos.proxy import Line, Way

from researchcopilot.core.errors import Unavailable
from researchcopilot.core.settings import DatabaseSettings
from researchcopilot.storage.db import Database
from researchcopilot.storage.renewal import Renewer

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


async def test_a_renewal_that_nobody_answers_ends(line: Line, database_url: str) -> None:
    """Protects: leases are renewed over another connection before they run out."""
    renewer = Renewer(through(line, database_url), 0.5)
    worker_id = "00000000-0000-0000-0000-000000000001"
    assert not renewer.beat(worker_id)
    with line.closed(Way.BACK, late=False), pytest.raises(Unavailable):
        await asyncio.wait_for(asyncio.to_thread(renewer.beat, worker_id), 10)
    assert not renewer.beat(worker_id)
    renewer.close()
