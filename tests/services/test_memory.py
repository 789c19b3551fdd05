"""memory: what a run has concluded is found by later ones and cited as just that; never after its
time, never when it was deleted, never by another workspace."""

from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Parts
from tests.services.claimed import claim, context, new_context
from tests.services.claimed import finish as end
from tests.services.research_corpus import ask, indexed, researching, with_jobs
from tests.support import ended, eventually, submit_one, working

from researchcopilot.agents.contract import Remembered, agent
from researchcopilot.agents.research import research
from researchcopilot.core.settings import Settings
from researchcopilot.janitor.memories import LOCK, expire_memories
from researchcopilot.storage import keys, memories
from researchcopilot.storage.db import Database
from researchcopilot.storage.lock import Locks
from researchcopilot.storage.memories import Memory
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio
QUESTION = "pgvector 的索引有哪些"


async def kept(db: Database, workspace_id: int = 1) -> list[Memory]:
    return await memories.list_memories(db, workspace_id, before=None, limit=100)


def cited(run: dict[str, Any]) -> list[str]:
    """The runs whose memories it cites."""
    citations = run["result"]["citations"]
    return [one["run_id"] for one in citations if one["kind"] == "memory"]


async def test_a_conclusion_is_kept_and_cited_by_a_later_run(
    db: Database, queue: Queue, settings: Settings
) -> None:
    """Protects: text, question, source and expiry of the memory; the words and the citation of
    the later answer; both languages; documents stay cited as documents."""
    async with researching(with_jobs(settings, memory_days=7.0), db, queue):
        await indexed(db, queue)
        first = await ask(db, queue, {"question": QUESTION})
        assert {one["kind"] for one in first["result"]["citations"]} == {"document"}
        [memory] = await kept(db)
        assert (memory.run_id, memory.question) == (first["run_id"], QUESTION)
        assert memory.text == first["result"]["conclusion"]
        assert "pgvector 的索引有 HNSW 和 IVFFlat。" in memory.text.splitlines()
        assert (memory.expires_at - memory.created_at).days == 7
        assert memory.created_at == first["finished_at"]

        again = await ask(db, queue, "对比 pgvector 与 Qdrant")
        assert cited(again) == []  # it says nothing of Qdrant
        later = await ask(db, queue, "pgvector 有什么索引？")
    assert cited(later)[0] == first["run_id"]
    one = next(one for one in later["result"]["citations"] if one["kind"] == "memory")
    assert set(one) == {"n", "kind", "memory_id", "run_id", "question", "day", "quote"}
    assert (one["memory_id"], one["quote"]) == (memory.memory_id, memory.text)
    assert one["day"] == f"{memory.created_at:%Y-%m-%d}"
    answer = later["result"]["answer"]
    assert f"**早先的研究**\n- {one['day']} 的一次研究（问题：“{QUESTION}”）" in answer
    assert answer.count(f"[{one['n']}]") == 1
    numbers = [one["n"] for one in later["result"]["citations"]]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_it_answers_in_english_and_alone_when_the_corpus_has_lost_it(
    db: Database, queue: Queue, settings: Settings
) -> None:
    """Protects: an answer that only memory supports says so, is found, and leaves no memory of its
    own: nothing is handed on without a document behind it."""
    async with researching(settings, db, queue):
        await indexed(db, queue)
        first = await ask(db, queue, "How many threads run Python code under the GIL?")
        assert first["result"]["found"]
        await db.execute(b"UPDATE documents SET retired_at = now() WHERE name = 'gil.md'")
        await indexed(db, queue)
        later = await ask(db, queue, "How many threads run Python code under the GIL?")
        assert [memory.run_id for memory in await kept(db)] == [first["run_id"]]
    result = later["result"]
    assert (result["found"], result["conclusion"]) == (True, "")
    assert cited(later) == [first["run_id"]]
    assert "**From an earlier run**\n- A run of " in result["answer"]
    assert "concluded: “The GIL lets one thread run Python code at a time.”" in result["answer"]


async def test_what_found_nothing_is_not_remembered(
    db: Database, queue: Queue, settings: Settings
) -> None:
    async with researching(settings, db, queue):
        await indexed(db, queue)
        run = await ask(db, queue, "谁发明了电话？")
    assert (run["result"]["found"], await kept(db)) == (False, [])


async def test_an_expired_or_deleted_memory_is_never_cited(
    db: Database, queue: Queue, settings: Settings
) -> None:
    """Protects: from the moment it expires, though its row is there; and at once after DELETE."""
    async with researching(settings, db, queue):
        await indexed(db, queue)
        first = await ask(db, queue, QUESTION)
        await db.execute(
            b"UPDATE memories SET created_at = clock_timestamp() - interval '2 s',"
            b" expires_at = clock_timestamp()"
        )
        second = await ask(db, queue, QUESTION)
        assert cited(second) == []
        assert [memory.run_id for memory in await kept(db)] == [second["run_id"]]
        [memory] = await kept(db)
        assert await memories.forget(db, 1, memory.memory_id)
        assert not await memories.forget(db, 1, memory.memory_id)
        third = await ask(db, queue, QUESTION)
        assert cited(third) == []
        assert cited(await ask(db, queue, QUESTION)) == [third["run_id"]]
    [(left,)] = await db.rows(b"SELECT count(*) FROM memories")
    assert left == 3  # the expired one is the janitor's
    assert first["run_id"] not in [memory.run_id for memory in await kept(db)]


async def test_another_workspace_never_finds_it(
    db: Database, queue: Queue, settings: Settings
) -> None:
    """Protects: the same documents, the same question, another workspace."""
    await keys.create(db, workspace="other", name="x")
    [(other,)] = await db.rows(b"SELECT workspace_id FROM workspaces WHERE name = 'other'")
    async with (
        researching(settings, db, queue),
        researching(settings, db, queue, workspace_id=other),
    ):
        await indexed(db, queue)
        await indexed(db, queue, other)
        ours = await ask(db, queue, QUESTION)
        theirs = await ask(db, queue, QUESTION, workspace_id=other)
        assert theirs["result"]["found"]
        assert cited(theirs) == []
        again = await ask(db, queue, QUESTION, workspace_id=other)
    assert cited(again) == [theirs["run_id"]]
    assert [memory.run_id for memory in await kept(db)] == [ours["run_id"]]
    [memory] = await kept(db)
    assert not await memories.forget(db, other, memory.memory_id)


async def test_a_retried_run_cites_the_same_unless_it_was_forgotten(
    db: Database, queue: Queue, settings: Settings, tmp_path: Path
) -> None:
    """Protects: the memories of the first claim are those of the second, though there are newer
    ones; one that was deleted in between is left out all the same."""
    async with researching(settings, db, queue):
        await indexed(db, queue)
        first = await ask(db, queue, QUESTION)
    ctx = await new_context(db, queue, tmp_path, value=QUESTION)
    answer = await research(ctx, QUESTION)
    assert [one["run_id"] for one in answer["citations"] if one["kind"] == "memory"] == [
        first["run_id"]
    ]
    await end(db, ctx.run, "release")
    await db.execute(
        b"INSERT INTO memories SELECT gen_random_uuid(), workspace_id, gen_random_uuid(), question,"
        b" text || E'\nand more', tokens, clock_timestamp(), expires_at FROM memories"
    )
    second = context(await claim(db, ctx.run.run_id), db, queue, tmp_path)
    assert await research(second, QUESTION) == answer
    await end(db, second.run, "release")
    [old] = [memory for memory in await kept(db) if memory.run_id == first["run_id"]]
    await memories.forget(db, 1, old.memory_id)
    third = context(await claim(db, ctx.run.run_id), db, queue, tmp_path)
    without = await research(third, QUESTION)
    assert {one["kind"] for one in without["citations"]} == {"document"}
    fresh = await research(await new_context(db, queue, tmp_path, value=QUESTION), QUESTION)
    assert "memory" in {one["kind"] for one in fresh["citations"]}


async def test_an_agent_that_remembers_badly_still_succeeds(
    db: Database, queue: Queue, settings: Settings
) -> None:
    """Protects: a success is never lost over its memory: one that raises, one that gives rubbish,
    and one that gives too much."""

    def raises(given: Any, result: Any) -> Remembered:
        raise KeyError("conclusion")

    def rubbish(given: Any, result: Any) -> Any:
        return {"text": 3}

    def nothing(given: Any, result: Any) -> Remembered:
        return Remembered("why?", " \n", ("a",))

    def much(given: Any, result: Any) -> Remembered:
        tokens = ("x" * 100_000, "a\0b", "", *map(str, range(10_000)))
        return Remembered("why\0?" * 1000, "so\ud800\0" * 10_000, tokens)

    async def answers(ctx: Any, given: Any) -> Any:
        return {"answer": given}

    made = {
        hook.__name__: agent(remember=hook)(_copy(answers))
        for hook in (raises, rubbish, nothing, much)
    }
    async with working(settings, db, queue, made):
        ids = {name: await submit_one(db, queue, agent=name) for name in made}
        for run_id in ids.values():
            assert (await ended(db, run_id))["status"] == "succeeded"
    [memory] = await kept(db)
    assert memory.run_id == ids["much"]
    assert len(memory.text) <= 8_000
    [(tokens,)] = await db.rows(b"SELECT tokens FROM memories")
    assert 1_000 < len(tokens) <= 2_000


def _copy(fn: Any) -> Any:
    async def copied(ctx: Any, given: Any) -> Any:
        return await fn(ctx, given)

    return copied


async def put(db: Database, *, workspace_id: int = 1, hours: float = 1, count: int = 1) -> None:
    """Memories of that workspace that expire in so many hours, by the token `t`."""
    await db.execute(
        b"INSERT INTO memories SELECT gen_random_uuid(), %(w)s, gen_random_uuid(), 'q', 't' || n,"
        b" '{t}', clock_timestamp() - interval '1 day', clock_timestamp() + %(h)s * interval '1 h'"
        b" FROM generate_series(1, %(n)s) n",
        {"w": workspace_id, "h": hours, "n": count},
    )


async def test_what_is_expired_or_foreign_is_not_even_looked_at(db: Database) -> None:
    """Protects: the search itself; what it finds is looked at once more before it is cited."""
    await keys.create(db, workspace="other", name="x")
    [(other,)] = await db.rows(b"SELECT workspace_id FROM workspaces WHERE name = 'other'")
    await put(db)
    await put(db, hours=-1)
    await put(db, workspace_id=other)
    [found] = await memories.recall(db, 1, ["t"], 9)
    [own] = await kept(db)
    assert found.memory_id == own.memory_id
    assert await memories.recall(db, 1, ["other"], 9) == []
    rows = await db.rows(b"SELECT memory_id FROM memories")
    assert await memories.living(db, 1, [row[0] for row in rows]) == {own.memory_id}


async def test_what_was_concluded_a_hundred_times_hides_nothing_else(db: Database) -> None:
    """Protects: a question that a schedule asks each minute. Its many equal conclusions are one to
    choose from, the newest."""
    await put(db, count=2)
    await db.execute(
        b"INSERT INTO memories SELECT gen_random_uuid(), 1, gen_random_uuid(), 'q' || n, 'same',"
        b" '{t}', clock_timestamp() - interval '1 h' + n * interval '1 s', 'infinity'"
        b" FROM generate_series(1, 100) n"
    )
    found = await memories.recall(db, 1, ["t"], 50)
    assert sorted(memory.text for memory in found) == ["same", "t1", "t2"]
    assert (found[0].text, found[0].question) == ("same", "q100")


async def test_expired_memories_are_removed_by_one_janitor_at_a_time(
    db: Database, queue: Queue, settings: Settings
) -> None:
    """Protects: expire_memories: all that has expired, in batches, and nothing else; whoever does
    not have the lock leaves it to the other."""
    await put(db, count=3)
    await put(db, hours=-1, count=1200)
    locks = Locks(settings.redis)
    try:
        async with locks.hold(LOCK):
            await expire_memories(db, locks)
            assert await rows_left(db) == 1203
        await expire_memories(db, locks)
        assert await rows_left(db) == 3
    finally:
        await locks.close()


async def rows_left(db: Database) -> int:
    [(left,)] = await db.rows(b"SELECT count(*) FROM memories")
    return int(left)


async def test_the_janitor_has_that_duty(db: Database, queue: Queue, parts: Parts) -> None:
    await put(db, hours=-1)
    parts("janitor")

    async def swept() -> bool:
        return await rows_left(db) == 0

    await eventually(swept)
