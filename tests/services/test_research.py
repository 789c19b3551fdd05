"""research as a run: cited exactly, pinned to one version, and the same after a retry."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.services.claimed import claim, context, finish, new_context

from researchcopilot.agents.rebuild import rebuild_index
from researchcopilot.agents.research import research
from researchcopilot.agents.research.cache import Cache
from researchcopilot.core.documents import read_document
from researchcopilot.core.errors import RetryLater
from researchcopilot.storage import indexes
from researchcopilot.storage.db import Database
from researchcopilot.storage.documents import add_documents, get_document
from researchcopilot.storage.queue import Queue
from researchcopilot.worker.context import WorkerContext

pytestmark = pytest.mark.anyio
QUESTION = "对比 pgvector 与 Qdrant"
TEXTS = {
    "pgvector.md": "# pgvector\n\n> pgvector 是 PostgreSQL 的扩展，\n> 向量与数据在一个事务里。\n",
    "qdrant.md": "# Qdrant\n\n- Qdrant 是专用的向量数据库，用 Rust 写成。它没有跨点的事务。\n",
    "gil.txt": "The GIL is a lock.\r\nBecause of the GIL, threads run Python one at a time.\r\n",
}


async def corpus(db: Database, queue: Queue, cache_dir: Path, texts: dict[str, str]) -> int:
    found = [read_document(name, text.encode(), max_bytes=9999) for name, text in texts.items()]
    await add_documents(db, 1, found)
    ctx = await new_context(db, queue, cache_dir, "rebuild_index", {})
    version = (await rebuild_index(ctx, {}))["index_version"]
    assert isinstance(version, int)
    return version


async def test_an_answer_is_cited_to_the_character(
    db: Database, queue: Queue, tmp_path: Path
) -> None:
    version = await corpus(db, queue, tmp_path, TEXTS)
    for question, language, cited in [
        (QUESTION, "zh", {"pgvector.md", "qdrant.md"}),
        ({"question": "How does the GIL affect threads?"}, "en", {"gil.txt"}),
    ]:
        ctx = await new_context(db, queue, tmp_path, value=question)
        result = await research(ctx, question)
        parts = {"answer", "citations", "conclusion", "index_version", "found", "language"}
        assert set(result) == parts
        assert (result["found"], result["language"]) == (True, language)
        assert result["index_version"] == version
        assert {one["name"] for one in result["citations"]} == cited
        for number, one in enumerate(result["citations"], start=1):
            document = await get_document(db, 1, one["document_id"])
            assert document is not None
            assert one["n"] == number
            assert (one["title"], one["name"]) == (document.title, document.name)
            assert document.body[one["start"] : one["end"]] == one["quote"]
            assert f"[{number}]" in result["answer"]


async def test_an_empty_corpus_is_said_to_be_empty(
    db: Database, queue: Queue, tmp_path: Path
) -> None:
    for question, says in (("锁是什么", "语料库还是空的"), ("What is a lock?", "corpus is empty")):
        result = await research(await new_context(db, queue, tmp_path), question)
        assert says in result["answer"]
        assert (result["found"], result["citations"], result["index_version"]) == (False, [], None)


async def test_what_is_not_in_the_corpus_is_not_answered(
    db: Database, queue: Queue, tmp_path: Path
) -> None:
    await corpus(db, queue, tmp_path, TEXTS)
    result = await research(await new_context(db, queue, tmp_path), "pgvector 的创始人是谁")
    assert (result["found"], result["citations"]) == (False, [])
    assert "没有提到“创始人”" in result["answer"]


class Dying(WorkerContext):
    """A claim whose worker dies in its second step."""

    async def step(self, name: str, fn: Any) -> Any:
        if self._used:
            raise ConnectionError("the worker is gone")
        return await super().step(name, fn)


async def test_a_retried_run_answers_as_if_nothing_had_happened(
    db: Database, queue: Queue, tmp_path: Path
) -> None:
    await corpus(db, queue, tmp_path, TEXTS)
    whole = await research(await new_context(db, queue, tmp_path), QUESTION)

    first = await new_context(db, queue, tmp_path)
    first.__class__ = Dying
    with pytest.raises(ConnectionError):
        await research(first, QUESTION)
    await finish(db, first.run, "release")
    # Meanwhile the corpus moves on, far enough that the pinned version would be pruned.
    for number in range(indexes.KEEP + 1):
        await corpus(db, queue, tmp_path, {f"{number}.md": f"pgvector Qdrant {number}"})

    again = context(await claim(db, first.run.run_id), db, queue, tmp_path / "other worker")
    assert again.run.claim_no == 2
    assert await research(again, QUESTION) == whole
    kept = await db.rows(
        b"SELECT name, claim_no FROM steps WHERE run_id = %(r)s ORDER BY created_at",
        {"r": first.run.run_id},
    )
    assert [claim_no for _, claim_no in kept] == [1, 2, 2, 2]


async def test_runs_at_once_fetch_a_version_once(
    db: Database, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = await corpus(db, queue, tmp_path, TEXTS)
    files = await indexes.files_of(db, 1, version)
    assert files is not None
    get_blob, fetched = indexes.get_blob, []

    async def counted(db: Database, sha256: str) -> bytes | None:
        fetched.append(sha256)
        return await get_blob(db, sha256)

    monkeypatch.setattr(indexes, "get_blob", counted)
    contexts = [await new_context(db, queue, tmp_path / "reader") for _ in range(6)]
    results = await asyncio.gather(*(research(ctx, QUESTION) for ctx in contexts))
    assert all(result == results[0] for result in results)
    assert len(fetched) == sum(map(len, files[1].values()))


async def test_a_run_that_is_cancelled_does_not_end_the_fetch_for_the_others(
    db: Database, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = await corpus(db, queue, tmp_path, TEXTS)
    get_blob, begun, go_on = indexes.get_blob, asyncio.Event(), asyncio.Event()

    async def slow(db: Database, sha256: str) -> bytes | None:
        begun.set()
        await go_on.wait()
        return await get_blob(db, sha256)

    monkeypatch.setattr(indexes, "get_blob", slow)
    cache = Cache(tmp_path / "reader")
    found = await indexes.files_of(db, 1, version)
    assert found is not None
    one = asyncio.create_task(cache._shared(db, found[1]))
    await begun.wait()
    other = asyncio.create_task(cache._shared(db, found[1]))
    await asyncio.sleep(0)  # it waits for the same fetch now
    one.cancel()
    go_on.set()
    async with asyncio.timeout(10):
        assert (await other).size == 3
    assert one.cancelled()


async def test_two_processes_may_share_a_cache_folder(
    db: Database, queue: Queue, tmp_path: Path
) -> None:
    version = await corpus(db, queue, tmp_path, TEXTS)
    caches = [Cache(tmp_path / "shared") for _ in range(4)]
    readers = await asyncio.gather(*(cache.reader(db, 1, version) for cache in caches))
    assert [reader.size for reader in readers] == [3, 3, 3, 3]
    assert len(list((tmp_path / "shared" / "index").iterdir())) == 1
    assert list((tmp_path / "shared" / "work").iterdir()) == []


async def test_a_damaged_cache_folder_is_fetched_again(
    db: Database, queue: Queue, tmp_path: Path
) -> None:
    version = await corpus(db, queue, tmp_path, TEXTS)
    await Cache(tmp_path / "c").reader(db, 1, version)
    [folder] = (tmp_path / "c" / "index").iterdir()
    for damage in (
        lambda: (folder / "meta.json").write_text("{"),
        lambda: next(folder.glob("*.term")).unlink(),
        lambda: next(folder.glob("*.store")).write_bytes(b""),
        lambda: shutil.rmtree(folder),
    ):
        damage()
        reader = await Cache(tmp_path / "c").reader(db, 1, version)
        assert reader.size == 3


async def test_a_piece_that_is_not_what_it_is_named_is_never_used(
    db: Database, queue: Queue, tmp_path: Path
) -> None:
    await corpus(db, queue, tmp_path, TEXTS)
    await db.execute(b"UPDATE index_blobs SET data = data || 'x'")
    ctx = await new_context(db, queue, tmp_path / "reader")
    with pytest.raises(RetryLater, match="is damaged"):
        await research(ctx, QUESTION)
    assert not list((tmp_path / "reader").glob("index/*"))


async def test_an_index_of_another_format_is_not_read(
    db: Database, queue: Queue, tmp_path: Path
) -> None:
    await corpus(db, queue, tmp_path, TEXTS)
    await db.execute(b"UPDATE index_versions SET format = format + 1")
    with pytest.raises(RetryLater, match="this worker reads"):
        await research(await new_context(db, queue, tmp_path), QUESTION)
