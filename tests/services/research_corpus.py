"""A small corpus, and a worker that answers from it, digests and reports; for tests of the jobs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from tests.support import ended, new_run, submit, working

from researchcopilot.agents.daily_report import daily_report
from researchcopilot.agents.digest import digest
from researchcopilot.agents.rebuild import rebuild_index
from researchcopilot.agents.research import research
from researchcopilot.core.documents import read_document
from researchcopilot.core.ids import new_id
from researchcopilot.core.settings import Settings
from researchcopilot.storage.db import Database
from researchcopilot.storage.documents import add_documents, rebuild_run
from researchcopilot.storage.queue import Queue
from researchcopilot.worker.worker import Worker

AGENTS = {
    "research": research,
    "rebuild_index": rebuild_index,
    "digest": digest,
    "daily_report": daily_report,
}
TEXTS = {
    "pgvector.md": "# pgvector\n\npgvector 是 PostgreSQL 的扩展。"
    "pgvector 的索引有 HNSW 和 IVFFlat。\n",
    "qdrant.md": "# Qdrant\n\nQdrant 是用 Rust 写的向量数据库。Qdrant 的索引只有 HNSW。\n",
    "gil.md": "# The GIL\n\nThe GIL lets one thread run Python code at a time.\n\n"
    "Threads release the GIL while they wait for the network.\n",
}


def with_jobs(settings: Settings, **fields: Any) -> Settings:
    return replace(settings, jobs=replace(settings.jobs, **fields))


@asynccontextmanager
async def researching(
    settings: Settings, db: Database, queue: Queue, *, workspace_id: int = 1
) -> AsyncIterator[Worker]:
    """A worker of both queues, over an index of TEXTS. Digests come at once."""
    texts = [read_document(name, text.encode(), max_bytes=9999) for name, text in TEXTS.items()]
    await add_documents(db, workspace_id, texts)
    prompt = with_jobs(settings, digest_delay_s=0.0)
    queues = {"runs": 2, "system": 2}
    async with working(prompt, db, queue, AGENTS, queues=queues) as worker:
        await submit(db, queue, rebuild_run(workspace_id))
        yield worker


async def ask(
    db: Database, queue: Queue, question: Any, *, workspace_id: int = 1, session: str | None = None
) -> dict[str, Any]:
    """The row of the run that answered."""
    run = new_run(session or new_id(), agent="research", input=question, workspace_id=workspace_id)
    await submit(db, queue, run)
    return await ended(db, run.run_id)


async def indexed(db: Database, queue: Queue, workspace_id: int = 1) -> None:
    """Bring the index up to the documents."""
    [run_id] = await submit(db, queue, rebuild_run(workspace_id))
    assert (await ended(db, run_id))["status"] == "succeeded"
