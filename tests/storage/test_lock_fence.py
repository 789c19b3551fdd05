"""Fences: numbers in Postgres that only grow: who lost its lock without noticing is refused."""

import asyncio
from pathlib import Path

import pytest
from tests.storage.lock_servers import Server
from tests.support import eventually, waits_in

from researchcopilot.core.errors import LostLock, Unavailable
from researchcopilot.core.settings import DatabaseSettings
from researchcopilot.storage.db import Database
from researchcopilot.storage.lock import Locks, check_fence

pytestmark = pytest.mark.anyio


async def test_fences_only_grow(server: Server, db: Database) -> None:
    """Protects: each holder has a greater number than all before it, also after a flush."""
    locks = server.locks(db)
    fences = []
    for _ in range(3):
        async with locks.hold("rebuild", fenced=True) as held:
            assert held is not None
            fences.append(held.fence)
        server.client.flushall()
    assert fences == [1, 2, 3]
    await locks.close()


async def test_a_stale_holder_cannot_publish(server: Server, db: Database) -> None:
    """Protects: who lost the lock without noticing is refused inside its transaction."""
    locks = server.locks(db)
    async with locks.hold("rebuild", fenced=True) as stale:
        assert stale is not None
        async with db.transaction() as connection:
            await check_fence(connection, stale)
        server.client.flushall()  # and nobody has told it yet
        async with locks.hold("rebuild", fenced=True) as now:
            assert now is not None
            with pytest.raises(LostLock, match="fence"):
                async with db.transaction() as connection:
                    await check_fence(connection, stale)
            async with db.transaction() as connection:
                await check_fence(connection, now)
    await locks.close()


async def test_nobody_takes_it_while_somebody_publishes(server: Server, db: Database) -> None:
    """Protects: between the check and the commit there is no gap for a new holder."""
    locks = server.locks(db)
    async with locks.hold("rebuild", fenced=True) as held:
        assert held is not None
        async with db.transaction() as connection:
            await check_fence(connection, held)
            server.client.flushall()
            taking = asyncio.create_task(take(locks))
            await eventually(lambda: server.client.exists("lock:rebuild"))
            await eventually(lambda: waits_in(db, "INSERT INTO locks"))
            assert not taking.done()
        assert await asyncio.wait_for(taking, 5) == 2
    await locks.close()


async def take(locks: Locks) -> int | None:
    async with locks.hold("rebuild", fenced=True) as held:
        return held.fence if held else None


async def test_without_postgres_a_fenced_lock_is_not_taken(server: Server, tmp_path: Path) -> None:
    """Protects: no fence, no lock; and the token is given back at once."""
    away = Database(DatabaseSettings(url=f"postgresql:///x?host={tmp_path}"))
    await away.open()
    away.pool.timeout = 0.3
    locks = server.locks(away)
    with pytest.raises(Unavailable, match="Postgres"):
        async with locks.hold("rebuild", fenced=True):
            raise AssertionError("it was taken")
    assert server.client.exists("lock:rebuild") == 0
    await locks.close()
    await away.close()
