"""aggregate_stats: what a worker has finished, in rows of its own, each counted once."""

from dataclasses import replace
from typing import Any

import pytest
from tests.services.research_corpus import with_jobs
from tests.support import ended, eventually, new_run, submit, submit_one, working

from researchcopilot.core.errors import Permanent, Unavailable
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Claim
from researchcopilot.core.settings import Settings
from researchcopilot.storage import stats as stored
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.retention import prune
from researchcopilot.worker.stats import Stats

pytestmark = pytest.mark.anyio
SUMS = (
    b"SELECT agent, sum(succeeded), sum(failed), sum(cancelled), sum(retried), sum(seconds)"
    b" FROM stats GROUP BY agent ORDER BY agent"
)


async def test_a_worker_writes_what_it_finished(
    db: Database, queue: Queue, settings: Settings
) -> None:
    """Protects: by agent, each claim once, in the database's minute; while it works and, the
    rest, when it leaves."""

    async def fine(ctx: Any, given: Any) -> Any:
        return given

    async def broken(ctx: Any, given: Any) -> Any:
        raise Permanent("no")

    agents = {"fine": fine, "broken": broken}

    async def there() -> bool:
        rows = await db.rows(SUMS)
        return len(rows) == 1 and rows[0][1] == 2

    async with working(with_jobs(settings, stats_s=0.05), db, queue, agents):
        for run_id in await submit(db, queue, *(new_run(agent="fine") for _ in range(2))):
            await ended(db, run_id)
        await eventually(there)
        assert (await ended(db, await submit_one(db, queue, "broken")))["status"] == "failed"
        await ended(db, await submit_one(db, queue, "fine"))
    found = {agent: [int(n) for n in counts] for agent, *counts, _ in await db.rows(SUMS)}
    assert found == {"fine": [3, 0, 0, 0], "broken": [0, 1, 0, 0]}
    [(seconds, late)] = await db.rows(
        b"SELECT sum(seconds), count(*) FILTER (WHERE minute <> date_trunc('minute', minute))"
        b" FROM stats"
    )
    assert (seconds > 0, late) == (True, 0)


def claim(agent: str) -> Claim:
    fields: dict[str, Any] = dict.fromkeys(Claim.__slots__)
    return Claim(**{**fields, "workspace_id": 1, "agent": agent})


async def test_a_part_that_is_sent_twice_counts_once(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects: the answer of a write is lost; it is sent again, and what came meanwhile waits."""
    stats = Stats(db, new_id())
    write, sent = stored.write, []

    async def loses_the_answer(*arguments: Any) -> None:
        await write(*arguments)
        sent.append(arguments)
        if len(sent) == 1:
            raise Unavailable("the answer was lost")

    monkeypatch.setattr(stored, "write", loses_the_answer)
    stats.add(claim("a"), "succeeded", 1.5)
    stats.add(claim("a"), "release", 9.0)  # somebody else ends it
    with pytest.raises(Unavailable):
        await stats.write()
    stats.add(claim("a"), "retry", 0.5)
    stats.add(claim("b"), "cancelled", 0.25)
    await stats.write()
    await stats.write()
    await stats.write()
    assert len(sent) == 3
    assert [(a, int(s), int(c), int(r), x) for a, s, _, c, r, x in await db.rows(SUMS)] == [
        ("a", 1, 0, 1, 2.0),
        ("b", 0, 1, 0, 0.25),
    ]


async def test_old_rows_leave(db: Database, settings: Settings) -> None:
    """Protects: a chart of a month does not become a table of years."""
    await stored.write(db, new_id(), 1, [stored.Finished(1, "a", 1, 0, 0, 0, 1.0)])
    await db.execute(b"UPDATE stats SET minute = minute - interval '2 days'")
    await stored.write(db, new_id(), 1, [stored.Finished(1, "a", 1, 0, 0, 0, 1.0)])
    keep = replace(settings.retention, runs_days=1.0)
    assert await prune(db, "stats", keep, 500) == 1
    assert await prune(db, "stats", keep, 500) == 0
