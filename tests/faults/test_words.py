"""Fault 25: text that Postgres does not take. Wherever an agent says it, its run ends, is answered
and can be read; nothing that comes after is held up."""

import logging
from typing import Any

import pytest
from tests.support import ended, new_run, row, submit, submit_one, with_worker, working

from researchcopilot.agents.contract import Context
from researchcopilot.core.models import NewRun
from researchcopilot.core.settings import Settings
from researchcopilot.storage import events
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio
WORDS = "a\x00b\ud800c"
CLEAN = "a�b�c"
log = logging.getLogger(__name__)


async def speaks(ctx: Context, given: Any) -> Any:
    log.warning("says %s", WORDS, extra={"words": WORDS})
    await ctx.emit("said" + WORDS, {WORDS: WORDS})
    kept = await ctx.step("value", lambda: {WORDS: [WORDS]})
    if given == "raise":
        raise type("Odd" + CLEAN, (ValueError,), {})(WORDS + "x" * 1_000_000)
    return {"answer": WORDS, "kept": kept, WORDS: WORDS}


async def test_25_text_that_postgres_refuses_ends_its_run_and_is_kept_clean(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """windmill#10274, unstract#2289: NUL in a result or in an error message makes the last write
    fail; the failure path writes the same bytes, and the worker crashes again and again.

    Guard: every text is cleaned and cut before it is written. Red without worker/result.py:
    `text = dumps(clean_json(result))`
    """
    one_try = with_worker(settings, retry_base_s=0.01)
    async with working(one_try, db, queue, {"it": speaks}):
        good, bad = await submit(db, queue, said("return"), said("raise"))
        returned, raised = await ended(db, good), await ended(db, bad)
        assert (await ended(db, await submit_one(db, queue, "it")))["status"] == "succeeded"
    clean = {"answer": CLEAN, "kept": {CLEAN: [CLEAN]}, CLEAN: CLEAN}
    assert (returned["status"], returned["result"]) == ("succeeded", clean)
    assert raised["status"] == "failed"
    assert raised["error"]["message"].startswith(CLEAN)
    assert len(raised["error"]["message"]) <= 2000
    found = await db.rows(b"SELECT DISTINCT value FROM steps")
    assert found == [({CLEAN: [CLEAN]},)]
    [(_, kind, data)] = await events.read(queue, good)
    assert (kind, CLEAN in data) == ("said" + CLEAN, True)
    assert (await row(db, bad))["worker_id"] is None


def said(given: str) -> NewRun:
    return new_run(agent="it", input=given, max_attempts=1)
