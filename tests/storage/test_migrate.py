"""migrate: from nothing, twice, twice at once, a changed file; services wait for it."""

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest
from tests.support import eventually, waits_in

from researchcopilot.core.errors import ConfigError, SchemaBehind, Unavailable
from researchcopilot.core.settings import DatabaseSettings
from researchcopilot.storage.db import Database
from researchcopilot.storage.migrate import check_schema, migrate, migrations

pytestmark = pytest.mark.anyio


@pytest.fixture
async def empty(database_url: str) -> AsyncIterator[Database]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    db = Database(DatabaseSettings(url=database_url))
    await db.open()
    yield db
    await db.close()


async def test_from_nothing_and_again(empty: Database) -> None:
    with pytest.raises(SchemaBehind, match=r"0001_spine\.sql.*migrate"):
        await check_schema(empty)
    assert await migrate(empty) == [migration.name for migration in migrations()]
    await check_schema(empty)
    assert await migrate(empty) == []


async def test_two_at_once_apply_everything_once(empty: Database) -> None:
    applied = await asyncio.gather(*(migrate(empty) for _ in range(4)))
    assert sorted(map(len, applied)) == [0, 0, 0, len(migrations())]


async def test_a_migration_that_was_edited_is_refused(empty: Database) -> None:
    await migrate(empty)
    await empty.execute(b"UPDATE schema_migrations SET sha256 = 'x' WHERE name LIKE 'pre/0001%'")
    with pytest.raises(ConfigError, match="never edited"):
        await migrate(empty)


async def test_a_function_that_was_edited_is_installed_anew(empty: Database) -> None:
    await migrate(empty)
    await empty.execute(b"UPDATE schema_migrations SET sha256 = 'x' WHERE name LIKE '%/claim_1%'")
    assert await migrate(empty) == ["functions/claim_1.sql"]


async def test_a_failure_leaves_nothing_behind(empty: Database) -> None:
    await empty.execute(b"CREATE TABLE steps (mine int)")
    with pytest.raises(psycopg.errors.DuplicateTable):
        await migrate(empty)
    assert await empty.rows(b"SELECT to_regclass('runs')") == [(None,)]


async def test_a_table_that_a_backup_reads_is_left_to_those_who_work(
    empty: Database, database_url: str
) -> None:
    """Protects: all others stand in line behind a lock that migrate waits for. With the time-out of
    every other statement, 15 s, each running run would lose its lease in that line."""
    await migrate(empty)
    await empty.execute(b"DELETE FROM schema_migrations WHERE name LIKE 'pre/0009%'")
    with psycopg.connect(database_url) as backup:
        backup.execute("SELECT count(*) FROM runs")
        waiting = asyncio.create_task(migrate(empty))
        await eventually(lambda: waits_in(empty, "LOCK TABLE runs"))
        await asyncio.wait_for(empty.rows(b"SELECT FROM runs FOR NO KEY UPDATE"), 5)
        with pytest.raises(Unavailable, match=r"long transaction.*Nothing was changed"):
            await waiting
    with pytest.raises(SchemaBehind, match="0009"):
        await check_schema(empty)
