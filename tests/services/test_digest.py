"""digest: one message for a run, whoever writes it, however often, and whoever dies over it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.conftest import Parts
from tests.services.claimed import claim, context, new_context
from tests.services.claimed import finish as end
from tests.services.research_corpus import ask, indexed, researching, with_jobs
from tests.support import (
    ended,
    eventually,
    ledger,
    new_run,
    row,
    status_is,
    submit,
    submit_one,
    waits_in,
    working,
)

from researchcopilot.agents.contract import agent
from researchcopilot.agents.digest import digest
from researchcopilot.core.errors import BadAgentInput
from researchcopilot.core.ids import new_id
from researchcopilot.core.settings import Settings
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.runs import get_run

pytestmark = pytest.mark.anyio


async def digests(db: Database, run_id: str) -> list[dict[str, Any]]:
    """The payloads of the digests of a run."""
    rows = await db.rows(
        b"SELECT payload FROM messages WHERE run_id = %(r)s AND role = 'digest'", {"r": run_id}
    )
    return [payload for (payload,) in rows]


async def follower(db: Database, run_id: str) -> str | None:
    rows = await db.rows(b"SELECT run_id FROM runs WHERE follows = %(r)s", {"r": run_id})
    return rows[0][0] if rows else None


async def test_a_research_run_is_digested_in_its_session(
    db: Database, queue: Queue, settings: Settings
) -> None:
    """Protects: question, conclusion, sources, cost and duration, in the question's language."""
    session = new_id()
    async with researching(settings, db, queue):
        await indexed(db, queue)
        run = await ask(db, queue, "对比 pgvector 与 Qdrant", session=session)
        follows = await follower(db, run["run_id"])
        assert follows is not None
        done = await ended(db, follows)
    shown = await get_run(db, 1, follows)
    assert shown is not None and shown.follows == run["run_id"]
    assert done["result"] == {"run_id": run["run_id"], "outcome": "written"}
    [payload] = await digests(db, run["run_id"])
    assert payload["question"] == "对比 pgvector 与 Qdrant"
    assert payload["conclusion"] == run["result"]["conclusion"]
    assert {source["title"] for source in payload["sources"]} == {"pgvector", "Qdrant"}
    cost = payload["cost"]
    assert (cost["attempts"], cost["claims"], cost["steps"]) == (1, 1, 4)
    assert cost["passages"] >= 2
    took = run["finished_at"] - run["created_at"]
    assert payload["duration_s"] == pytest.approx(took.total_seconds(), abs=0.002)
    assert 0 < payload["executed_s"] <= payload["duration_s"]
    content = payload["content"]
    assert content.startswith("**摘要：对比 pgvector 与 Qdrant**\n\n- ")
    assert "来源：《" in content
    rows = await db.rows(
        b"SELECT role FROM messages WHERE session_id = %(s)s ORDER BY message_id", {"s": session}
    )
    assert [role for (role,) in rows] == ["user", "assistant", "digest"]


async def test_it_comes_after_its_delay_by_the_scheduler(
    db: Database, queue: Queue, settings: Settings, parts: Parts
) -> None:
    """Protects: the seeds' delayed job: through the delayed set, once, not before its time; the
    api's and the worker's part of it are processes."""
    parts("scheduler")
    parts("worker", RC_DIGEST_DELAY_SECONDS="0.5")
    run_id = await submit_one(db, queue, agent="research", input="Why?")
    source = await ended(db, run_id)
    follows = await follower(db, run_id)
    assert follows is not None
    assert (await row(db, follows))["status"] == "queued"
    done = await ended(db, follows)
    assert done["result"]["outcome"] == "written"
    assert (done["started_at"] - source["finished_at"]).total_seconds() >= 0.5
    assert await ledger(db, follows) == [(1, "succeeded", True)]
    [payload] = await digests(db, run_id)
    assert "The corpus had no answer." in payload["content"]


async def test_only_who_asks_for_it_is_digested(
    db: Database, queue: Queue, settings: Settings
) -> None:
    """Protects: it is the agent's option, not its name; and there is none without a session."""

    @agent(digest=True)
    async def asks(ctx: Any, given: Any) -> Any:
        return {"answer": "It is so. " * 100}

    async def research(ctx: Any, given: Any) -> Any:
        return {"answer": "no"}

    prompt = with_jobs(settings, digest_delay_s=0.0)
    made = {"asks": asks, "research": research, "digest": digest}
    async with working(prompt, db, queue, made, queues={"runs": 2, "system": 1}):
        wanted = await submit_one(db, queue, agent="asks")
        other = await submit_one(db, queue, agent="research")
        upkeep = replace(new_run(agent="asks", serial=False), session_id=None)
        await submit(db, queue, upkeep)
        for run_id in (wanted, other, upkeep.run_id):
            assert (await ended(db, run_id))["status"] == "succeeded"
        payload = await eventually(lambda: digests(db, wanted))
    assert payload[0]["conclusion"].startswith("It is so. It is so.")
    assert len(payload[0]["conclusion"]) <= 600
    assert await follower(db, other) is None
    assert await follower(db, upkeep.run_id) is None


async def test_a_second_claim_changes_nothing(db: Database, queue: Queue, tmp_path: Path) -> None:
    """Protects: at least once is once: the message stays as the first claim wrote it."""
    source = await succeeded(db, queue, tmp_path)
    ctx = await new_context(db, queue, tmp_path, "digest", {"run_id": source})
    assert (await digest(ctx, {"run_id": source}))["outcome"] == "written"
    before = await db.rows(b"SELECT * FROM messages ORDER BY message_id")
    await end(db, ctx.run, "release")
    again = context(await claim(db, ctx.run.run_id), db, queue, tmp_path)
    assert again.run.claim_no == 2
    assert (await digest(again, {"run_id": source}))["outcome"] == "already"
    assert await db.rows(b"SELECT * FROM messages ORDER BY message_id") == before


async def succeeded(db: Database, queue: Queue, tmp_path: Path) -> str:
    """A run that has an answer and no digest."""
    ctx = await new_context(db, queue, tmp_path, "research", "why?")
    await end(db, ctx.run, "succeeded", {"answer": "so", "language": "en"})
    return ctx.run.run_id


async def test_what_is_not_there_to_be_digested(db: Database, queue: Queue, tmp_path: Path) -> None:
    """Protects: a run that retention has removed ends its digest cleanly; another workspace's run
    is as good as none; one that failed, and input that is none, are refused for good."""
    source = await succeeded(db, queue, tmp_path)
    ctx = await new_context(db, queue, tmp_path, "digest", {"run_id": source})
    await db.execute(b"UPDATE runs SET workspace_id = 2 WHERE run_id = %(r)s", {"r": source})
    assert (await digest(ctx, {"run_id": source}))["outcome"] == "gone"
    await db.execute(b"DELETE FROM runs WHERE run_id = %(r)s", {"r": source})
    assert await digest(ctx, {"run_id": source}) == {"run_id": source, "outcome": "gone"}
    failed = await new_context(db, queue, tmp_path)
    await end(db, failed.run, "failed", error={"type": "x", "message": "y"})
    with pytest.raises(BadAgentInput, match="is failed"):
        await digest(ctx, {"run_id": failed.run.run_id})
    for bad in (None, {}, {"run_id": 3}, {"run_id": "x"}, "x"):
        with pytest.raises(BadAgentInput, match="takes the id"):
            await digest(ctx, bad)
    [(count,)] = await db.rows(b"SELECT count(*) FROM messages WHERE role = 'digest'")
    assert count == 0


async def test_the_crash_of_a_worker_in_the_middle_of_a_digest(
    db: Database, queue: Queue, settings: Settings, parts: Parts, database_url: str, tmp_path: Path
) -> None:
    """Protects: kill -9 while the message is being written. The dead worker's statement goes
    through after all, the next worker's too, and there is one message."""
    source = await succeeded(db, queue, tmp_path)
    parts("janitor")
    first = parts("worker")

    async def waiters(number: int) -> bool:
        return await waits_in(db, "INSERT INTO messages") == number

    with psycopg.connect(database_url) as blocker:
        blocker.execute("SELECT 1 FROM runs WHERE run_id = %s FOR UPDATE", [source])
        run = new_run(agent="digest", queue="system", input={"run_id": source})
        [run_id] = await submit(db, queue, run)
        await eventually(lambda: waiters(1))
        first.kill()
        parts("worker")
        await status_is(db, run_id, "running")
        await eventually(lambda: waiters(2), within=20)
        blocker.rollback()
    done = await ended(db, run_id, within=20)
    assert done["status"] == "succeeded"
    assert [outcome for _, outcome, _ in await ledger(db, run_id)] == ["lost", "succeeded"]
    assert done["result"]["outcome"] in ("written", "already")
    assert len(await digests(db, source)) == 1
