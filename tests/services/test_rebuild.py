"""rebuild_index: the index follows the documents, whoever builds at once and whenever one dies."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from tests.services.claimed import new_context
from tests.support import eventually

from researchcopilot.agents.rebuild import batches, difference, rebuild_index
from researchcopilot.agents.research.cache import Cache
from researchcopilot.agents.research.files import upload
from researchcopilot.agents.research.index import FORMAT
from researchcopilot.agents.research.terms import pieces
from researchcopilot.core.documents import read_document
from researchcopilot.core.errors import BadAgentInput, RetryLater
from researchcopilot.core.settings import Settings
from researchcopilot.storage import indexes
from researchcopilot.storage.db import Database
from researchcopilot.storage.documents import add_documents
from researchcopilot.storage.indexes import IndexVersion, NewVersion
from researchcopilot.storage.lock import Locks
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


async def add(db: Database, **texts: str) -> None:
    found = [read_document(f"{n}.md", text.encode(), max_bytes=9999) for n, text in texts.items()]
    await add_documents(db, 1, found)


async def build(db: Database, queue: Queue, cache_dir: Path) -> dict[str, Any]:
    ctx = await new_context(db, queue, cache_dir, "rebuild_index", {})
    return await rebuild_index(ctx, {})


async def names(db: Database, cache_dir: Path, version: int, word: str) -> list[str]:
    """The documents that a version finds for a word, read by a worker with an empty cache."""
    reader = await Cache(cache_dir / f"reader-{version}").reader(db, 1, version)
    return sorted({passage.name for passage in reader.search(pieces(word), 50)})


async def test_the_index_follows_the_documents(db: Database, queue: Queue, tmp_path: Path) -> None:
    assert await build(db, queue, tmp_path) == {
        "index_version": None,
        "changed": False,
        "documents": 0,
        "chunks": 0,
    }
    await add(db, a="alpha first", b="beta", c="gamma", d="delta", e="epsilon")
    first = await build(db, queue, tmp_path)
    assert first == {"index_version": 1, "changed": True, "documents": 5, "chunks": 5}
    assert (await build(db, queue, tmp_path))["changed"] is False

    await add(db, a="alpha second", f="zeta")
    second = await build(db, queue, tmp_path)
    assert (second["index_version"], second["documents"], second["chunks"]) == (2, 6, 6)
    assert await names(db, tmp_path, 2, "first") == []
    assert await names(db, tmp_path, 2, "second") == ["a.md"]
    assert await names(db, tmp_path, 2, "zeta") == ["f.md"]
    assert await names(db, tmp_path, 1, "first") == ["a.md"]


async def test_a_version_shares_the_pieces_that_did_not_change(
    db: Database, queue: Queue, tmp_path: Path
) -> None:
    await add(db, a="alpha", b="beta")
    await build(db, queue, tmp_path)
    await add(db, c="gamma")
    await build(db, queue, tmp_path)
    first, second = [await indexes.files_of(db, 1, version) for version in (1, 2)]
    assert first is not None
    assert second is not None
    grown = {name for name in first[1] if name not in ("meta.json", ".managed.json")}
    assert grown
    assert all(second[1][name] == first[1][name] for name in grown)


async def test_when_much_is_gone_it_is_built_from_nothing(
    db: Database, queue: Queue, tmp_path: Path
) -> None:
    await add(db, a="alpha", b="beta")
    await build(db, queue, tmp_path)
    await add(db, a="gamma", b="delta")
    await build(db, queue, tmp_path)
    files = await indexes.files_of(db, 1, 2)
    assert files is not None
    assert not any(name.endswith(".del") for name in files[1])
    assert await names(db, tmp_path, 2, "alpha") == []


async def test_two_builders_at_once_make_one_version(
    db: Database, queue: Queue, settings: Settings, tmp_path: Path
) -> None:
    other = Database(settings.database)
    await other.open()
    try:
        await add(db, a="alpha", b="beta")
        results = await asyncio.gather(
            *(build(each, queue, tmp_path) for each in (db, other, db, other))
        )
    finally:
        await other.close()
    assert {result["index_version"] for result in results} == {1}
    assert [result["changed"] for result in results].count(True) == 1


async def test_the_second_builder_waits_for_the_first(
    db: Database, queue: Queue, settings: Settings, tmp_path: Path
) -> None:
    """The lock saves the work; without Redis, or past the wait, it is done without the lock."""
    await add(db, a="alpha")
    locks = Locks(settings.redis, db)
    try:
        async with locks.hold("rebuild_index:1", fenced=True) as held:
            assert held is not None
            waiting = asyncio.create_task(build(db, queue, tmp_path))
            done, _ = await asyncio.wait((waiting,), timeout=0.3)
            assert not done
            assert await indexes.latest(db, 1) is None
        async with asyncio.timeout(10):
            assert (await waiting)["index_version"] == 1
    finally:
        await locks.close()


async def test_without_its_lock_an_index_is_built_all_the_same(
    db: Database, queue: Queue, settings: Settings, tmp_path: Path
) -> None:
    await add(db, a="alpha")
    ctx = await new_context(db, queue, tmp_path, "rebuild_index", {})
    away = replace(settings.redis, url="redis://127.0.0.1:1/0")
    await ctx._locks.close()
    ctx._locks = Locks(away, db)
    assert (await rebuild_index(ctx, {}))["index_version"] == 1
    await ctx._locks.close()


async def test_who_has_lost_the_lock_publishes_nothing_under_it(
    db: Database, queue: Queue, settings: Settings, tmp_path: Path
) -> None:
    """A builder that was stopped past its lock, while another took it: fenced, it builds again."""
    await add(db, a="alpha")
    await indexes.put_blob(db, "0" * 64, b"x")
    new = NewVersion(0, FORMAT, frozenset(), 0, {"meta.json": ("0" * 64,)})
    locks = Locks(settings.redis, db)
    try:
        async with locks.hold("rebuild_index:1", fenced=True) as stopped:
            assert stopped is not None
            await db.execute(b"UPDATE locks SET fence = fence + 1")
            assert await indexes.publish(db, 1, new, stopped) is None
            assert await indexes.latest(db, 1) is None
            assert await indexes.publish(db, 1, new) == 1
    finally:
        await locks.close()


async def test_a_builder_that_loses_its_lock_starts_again_under_a_new_one(
    db: Database, queue: Queue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Protects: the job itself publishes under its fence, not only the verb that it calls: the lock
    was taken while it built, and what it built is thrown away."""
    caplog.set_level(logging.INFO)
    await add(db, a="alpha")
    async with db.transaction() as connection:
        await connection.execute(b"SELECT pg_advisory_xact_lock(2, 1)")  # nobody publishes
        building = asyncio.create_task(build(db, queue, tmp_path))
        await eventually(lambda: somebody_waits_to_publish(db))
        await db.execute(b"UPDATE locks SET fence = fence + 1 WHERE name = 'rebuild_index:1'")
    async with asyncio.timeout(20):
        assert (await building)["index_version"] == 1
    assert [r.message for r in caplog.records].count("index version 1 has to be built again") == 1
    [(fence,)] = await db.rows(b"SELECT fence FROM locks WHERE name = 'rebuild_index:1'")
    assert fence == 3  # its own, the other's, and its own once more


async def somebody_waits_to_publish(db: Database) -> bool:
    rows = await db.rows(
        b"SELECT 1 FROM pg_locks JOIN pg_database d ON d.oid = database"
        b" WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()"
    )
    return bool(rows)


class Cut(Database):
    """A database whose process dies at the n-th connection it takes."""

    left = -1

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[TupleRow]]:
        self.left -= 1
        if self.left == 0:
            raise asyncio.CancelledError
        async with super().connection() as connection:
            yield connection


async def test_killed_anywhere_the_next_one_makes_the_same_index(
    db: Database, queue: Queue, settings: Settings, tmp_path: Path
) -> None:
    cut = Cut(settings.database)
    await cut.open()
    deaths = 0
    try:
        for left in range(1, 60):
            await add(db, **{f"d{left}": f"word{left} common"})
            ctx = await new_context(db, queue, tmp_path, "rebuild_index", {})
            ctx._db, cut.left = cut, left
            try:
                await rebuild_index(ctx, {})
            except asyncio.CancelledError:
                deaths += 1
            else:
                break
            result = await build(db, queue, tmp_path)
            assert result["documents"] == left
        else:
            pytest.fail("a rebuild takes more than 60 connections")
    finally:
        await cut.close()
    assert deaths > 5
    newest = await indexes.latest(db, 1)
    assert newest is not None
    found = await names(db, tmp_path, newest.version, "common")
    assert len(found) == deaths + 1 == newest.chunks
    assert list((tmp_path / "work").iterdir()) == []


async def test_a_base_that_is_damaged_is_mended_by_building_from_nothing(
    db: Database, queue: Queue, tmp_path: Path
) -> None:
    await add(db, a="alpha", b="beta", c="gamma", d="delta")
    await build(db, queue, tmp_path)
    await db.execute(b"UPDATE index_blobs SET data = 'broken'")
    await add(db, e="epsilon")
    result = await build(db, queue, tmp_path)
    assert (result["index_version"], result["chunks"]) == (2, 5)
    assert await names(db, tmp_path, 2, "alpha") == ["a.md"]


async def test_an_older_format_is_built_anew_and_a_newer_one_left_alone(
    db: Database, queue: Queue, tmp_path: Path
) -> None:
    await add(db, a="alpha")
    await build(db, queue, tmp_path)
    await db.execute(b"UPDATE index_versions SET format = format - 1")
    assert (await build(db, queue, tmp_path))["index_version"] == 2
    await db.execute(b"UPDATE index_versions SET format = %(f)s", {"f": FORMAT + 1})
    with pytest.raises(RetryLater, match="a newer worker has to build it"):
        await build(db, queue, tmp_path)


async def test_pieces_that_are_swept_before_they_are_named_are_stored_again(
    db: Database, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[int] = []

    async def upload_and_lose(*arguments: Any, whole: bool) -> int:
        count = await upload(*arguments, whole=whole)
        if not swept:
            swept.append((await indexes.prune(db, 1, idle_s=0)).blobs)
        return count

    monkeypatch.setattr("researchcopilot.agents.rebuild.upload", upload_and_lose)
    await add(db, a="alpha")
    assert (await build(db, queue, tmp_path))["index_version"] == 1
    assert swept[0] > 0
    assert await names(db, tmp_path, 1, "alpha") == ["a.md"]


async def test_it_takes_no_input(db: Database, queue: Queue, tmp_path: Path) -> None:
    ctx = await new_context(db, queue, tmp_path, "rebuild_index", {"all": True})
    with pytest.raises(BadAgentInput, match="takes no input"):
        await rebuild_index(ctx, {"all": True})


def test_the_difference_is_one_of_sets() -> None:
    base = IndexVersion(3, FORMAT, frozenset("abcdefgh"), 8)
    sizes = dict.fromkeys("abcdefgxy", 1)
    change = difference(base, sizes)
    assert (change.add, change.remove, change.whole) == (("x", "y"), ("h",), False)
    assert difference(base, dict.fromkeys("abc", 1)).whole
    assert difference(None, sizes).add == tuple(sorted(sizes))
    assert difference(IndexVersion(3, FORMAT - 1, base.document_ids, 8), sizes).whole


def test_texts_come_in_batches_that_fit_into_memory() -> None:
    sizes = {"a": 1, "b": 9_000_000, "c": 1, "d": 1}
    assert list(batches("abcd", sizes)) == [["a"], ["b"], ["c", "d"]]
    many = dict.fromkeys(map(str, range(450)), 1)
    assert [len(batch) for batch in batches(list(many), many)] == [200, 200, 50]
