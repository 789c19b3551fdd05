"""Documents in Postgres: one active document of a name and of a text, whoever adds them at once."""

import asyncio
from collections import Counter

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from researchcopilot.core.documents import NewDocument, read_document
from researchcopilot.core.errors import NotFound
from researchcopilot.core.ids import new_id
from researchcopilot.core.settings import Settings
from researchcopilot.storage.db import Database
from researchcopilot.storage.documents import (
    Active,
    active_documents,
    add_documents,
    decide,
    get_document,
    get_documents,
    list_documents,
    rebuild_run,
)

pytestmark = pytest.mark.anyio


def document(name: str, text: str) -> NewDocument:
    return read_document(name, text.encode(), max_bytes=10_000)


async def add(db: Database, *pairs: tuple[str, str]) -> list[tuple[str, str | None]]:
    added = await add_documents(db, 1, [document(name, text) for name, text in pairs])
    assert [one.name for one in added] == [name for name, _ in pairs]
    return [(one.outcome, one.duplicate_of) for one in added]


async def corpus(db: Database) -> dict[str, str]:
    texts = await get_documents(db, 1, list(await active_documents(db, 1)))
    return {one.name: one.body for one in texts}


async def test_a_document_is_added_replaced_unchanged_or_a_duplicate(db: Database) -> None:
    assert await add(db, ("a.md", "one"), ("b.md", "two")) == [("added", None), ("added", None)]
    assert await add(db, ("a.md", "one")) == [("unchanged", None)]
    assert await add(db, ("a.md", "three")) == [("replaced", None)]
    assert await add(db, ("c.md", "two")) == [("duplicate", "b.md")]
    assert await corpus(db) == {"a.md": "three", "b.md": "two"}


async def test_a_replaced_text_can_still_be_read_by_its_id(db: Database) -> None:
    [old] = await add_documents(db, 1, [document("a.md", "one")])
    [new] = await add_documents(db, 1, [document("a.md", "two")])
    found = await get_document(db, 1, old.document_id)
    assert found is not None
    assert found.body == "one"
    assert found.retired_at is not None
    assert old.document_id != new.document_id
    assert await get_document(db, 2, old.document_id) is None
    assert await get_document(db, 1, new_id()) is None


async def test_files_that_swap_their_texts_both_survive(db: Database) -> None:
    await add(db, ("a.md", "one"), ("b.md", "two"))
    assert await add(db, ("a.md", "two"), ("b.md", "one")) == [("replaced", None)] * 2
    assert await corpus(db) == {"a.md": "two", "b.md": "one"}


async def test_what_a_name_held_is_gone_when_its_new_text_is_a_duplicate(db: Database) -> None:
    await add(db, ("a.md", "one"), ("b.md", "two"))
    assert await add(db, ("a.md", "two")) == [("duplicate", "b.md")]
    assert await corpus(db) == {"b.md": "two"}


async def test_of_one_name_twice_in_a_call_the_last_text_counts(db: Database) -> None:
    pairs = [("a.md", "one"), ("b.md", "one"), ("a.md", "two")]
    assert await add(db, *pairs) == [("added", None)] * 3
    assert await corpus(db) == {"a.md": "two", "b.md": "one"}


async def test_documents_are_listed_by_name_in_pages(db: Database) -> None:
    await add(db, *((f"{name}.md", name) for name in "dbca"))
    first = await list_documents(db, 1, limit=3)
    assert [one.name for one in first] == ["a.md", "b.md", "c.md"]
    rest = await list_documents(db, 1, after=first[-1].name, limit=3)
    assert [(one.name, one.title, one.bytes) for one in rest] == [("d.md", "d", 1)]
    assert await list_documents(db, 2) == []


async def test_a_workspace_that_does_not_exist_is_named(db: Database) -> None:
    with pytest.raises(NotFound, match="no workspace 77"):
        await add_documents(db, 77, [document("a.md", "one")])


async def test_the_same_documents_from_two_processes_at_once(
    db: Database, settings: Settings
) -> None:
    """Twenty calls over two pools, in both orders: nobody fails, nothing is there twice."""
    other = Database(settings.database)
    await other.open()
    try:
        pairs = [(f"{n}.md", f"text {n}") for n in range(5)]
        calls = [
            add(each, *(pairs if number % 2 else pairs[::-1]))
            for number in range(10)
            for each in (db, other)
        ]
        outcomes = Counter(
            outcome for added in await asyncio.gather(*calls) for outcome, _ in added
        )
    finally:
        await other.close()
    assert outcomes == {"added": 5, "unchanged": 95}
    assert await corpus(db) == dict(pairs)


async def test_one_name_with_many_texts_at_once_ends_with_one_of_them(db: Database) -> None:
    texts = [f"text {n}" for n in range(12)]
    results = await asyncio.gather(*(add(db, ("a.md", text)) for text in texts))
    assert Counter(outcome for [(outcome, _)] in results) == {"added": 1, "replaced": 11}
    [(name, body)] = (await corpus(db)).items()
    assert name == "a.md"
    assert body in texts


async def test_the_unique_index_decides_against_a_writer_without_the_lock(
    db: Database, database_url: str
) -> None:
    """Whoever writes past the lock (a person, an older version) causes another look, no error."""
    row = document("a.md", "one")
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await connection.execute(
            "INSERT INTO documents (document_id, workspace_id, name, title, media_type, sha256,"
            " body, bytes) VALUES (%s, 1, %s, '', 'text/plain', %s, %s, %s)",
            (new_id(), row.name, row.sha256, row.body, row.bytes),
        )
        adding = asyncio.create_task(add(db, ("a.md", "one")))
        await someone_waits(database_url)
        await connection.commit()
    assert await adding == [("unchanged", None)]


async def someone_waits(url: str, limit_s: float = 5.0) -> None:
    """Return as soon as a session of the database waits for a lock."""
    async with (
        asyncio.timeout(limit_s),
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
    ):
        while True:
            cursor = await connection.execute(
                "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                " AND datname = current_database()"
            )
            if cursor.rowcount:
                return


def test_a_rebuild_is_a_system_run_that_is_queued_once() -> None:
    run = rebuild_run(7)
    assert (run.workspace_id, run.agent, run.queue) == (7, "rebuild_index", "system")
    assert (run.session_id, run.serial, run.unique_key) == (None, False, "rebuild_index")


PAIRS = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("1234")), max_size=6)


@given(PAIRS, PAIRS)
def test_any_batch_leaves_each_of_its_texts_once(
    before: list[tuple[str, str]], pairs: list[tuple[str, str]]
) -> None:
    """Against a plain model: a dictionary from names to texts, in which each text stands once."""
    corpus: dict[str, str] = {}
    for batch in (dict(before), dict(pairs)):
        others = {name: text for name, text in corpus.items() if name not in batch}
        active = [
            Active(f"{name}{text}", f"{name}.md", document("x.md", text).sha256)
            for name, text in corpus.items()
        ]
        changes = decide(active, [document(f"{name}.md", text) for name, text in batch.items()])
        for document_id in changes.retire:
            assert corpus.pop(document_id[0]) == document_id[1]
        corpus.update({new.name[0]: new.body for _, new in changes.insert})
        assert len(set(corpus.values())) == len(corpus)
        assert set(batch.values()) <= set(corpus.values())
        assert others.items() <= corpus.items()
