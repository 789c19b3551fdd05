"""Depths: what is told is what the servers hold, a probe is no run, an old look is none."""

import json
from typing import Any

import pytest
from tests.support import metric, new_run, prompt, submit, working

from researchcopilot.core.errors import Unavailable
from researchcopilot.core.ids import new_id
from researchcopilot.core.settings import RedisSettings, Settings
from researchcopilot.janitor.depths import DELAYED, LOAD, NEXT_DUE, OLDEST, WAITING, Depths, wanted
from researchcopilot.storage import depths
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


def exporter(db: Database, queue: Queue) -> Depths:
    return Depths(db, queue, lease_s=1, queues={"runs": 2})


def value(gauge: Any, queue: str = "runs") -> float | None:
    found = [s.value for m in gauge.collect() for s in m.samples if s.labels["queue"] == queue]
    return found[0] if found else None


def ask(one: Depths, query: str = "?queues=runs=2,system=1") -> dict[str, Any]:
    answer = one.answer(f"/metrics/queue/default{query}")
    assert answer is not None
    body: dict[str, Any] = json.loads(answer[2])
    return {"status": answer[0], **body}


async def test_it_tells_what_the_servers_hold(db: Database, queue: Queue) -> None:
    await submit(db, queue, *(new_run() for _ in range(5)))
    await submit(db, queue, new_run(delay_s=3600.0), new_run(delay_s=3600.0))
    one = exporter(db, queue)
    await one.measure()
    assert (value(WAITING), value(DELAYED), value(LOAD)) == (5, 2, 5)
    assert 0 <= (value(OLDEST) or 0) < 60
    assert ask(one) == {
        "status": 200, "pool": "default", "waiting": 5, "running": 0, "desired_workers": 3,
    }  # fmt: skip


async def test_a_delayed_run_that_nobody_moves_is_late(
    db: Database, queue: Queue, settings: Settings
) -> None:
    """Protects: a scheduler that lives and does nothing; its own gauges would say nothing."""
    await submit(db, queue, new_run(delay_s=3600.0))
    one = exporter(db, queue)
    await one.measure()
    assert 3590 < (value(NEXT_DUE) or 0) <= 3600
    with prompt(settings) as client:
        client.zadd("queue:runs:delayed", {f"1.{new_id()}": client.time()[0] - 40})
    await one.measure()
    assert -50 < (value(NEXT_DUE) or 0) <= -39


async def test_a_probe_wants_no_worker(db: Database, queue: Queue, settings: Settings) -> None:
    """A pool that was scaled to zero would be woken by it for ever."""
    async with working(settings, db, queue, {"echo": echo}):
        pass
    assert await queue.probe("runs", 1)
    with prompt(settings) as client:
        client.lrem("queue:runs", 0, "the test has ended")
    one = exporter(db, queue)
    await one.measure()
    assert ask(one)["desired_workers"] == 0


async def test_a_run_whose_entry_is_lost_wants_a_worker(
    db: Database, queue: Queue, settings: Settings
) -> None:
    await submit(db, queue, new_run())
    with prompt(settings) as client:
        client.flushall()
    one = exporter(db, queue)
    await one.measure()
    assert ask(one)["desired_workers"] == 1


async def test_what_cannot_be_read_is_taken_away(db: Database, queue: Queue) -> None:
    await submit(db, queue, new_run())
    one = exporter(db, queue)
    await one.measure()
    away = exporter(db, Queue(RedisSettings(url="redis://127.0.0.1:1/0")))
    away._told = one._told
    with pytest.raises(Unavailable):
        await away.measure()
    assert (value(WAITING), value(LOAD)) == (None, None)
    assert value(OLDEST) is not None
    assert ask(away)["status"] == 503


async def test_a_bad_question_is_refused_and_another_page_is_not_ours(
    db: Database, queue: Queue
) -> None:
    one = exporter(db, queue)
    await one.measure()
    assert ask(one, "?queues=runs")["status"] == 400
    assert ask(one, "")["desired_workers"] == 0
    assert one.answer("/metrics") is None
    assert one.answer("/metrics/queue/") is None


async def test_live_workers_are_counted_with_their_slots(
    db: Database, queue: Queue, settings: Settings
) -> None:
    async with working(settings, db, queue, {"echo": echo}, queues={"runs": 4, "system": 1}):
        rows = await depths.rows_by_queue(db, stale_s=5)
    assert (rows["runs"].workers, rows["runs"].slots) == (1, 4)
    assert rows["system"].slots == 1


@pytest.mark.parametrize(
    ("queues", "loads", "workers"),
    [
        ({"runs": 8}, {}, 0),
        ({"runs": 8}, {"runs": (1, 0)}, 1),
        ({"runs": 8}, {"runs": (0, 8)}, 1),
        ({"runs": 8}, {"runs": (1, 8)}, 2),
        ({"runs": 8, "system": 2}, {"runs": (1, 0), "system": (9, 0)}, 5),
    ],
)
def test_the_queue_that_needs_most_workers_decides(
    queues: dict[str, int], loads: dict[str, tuple[int, int]], workers: int
) -> None:
    assert wanted(queues, loads)["desired_workers"] == workers


async def echo(ctx: Any, given: Any) -> Any:
    return given


async def test_totals_are_those_of_postgres(db: Database, queue: Queue) -> None:
    [run_id] = await submit(db, queue, new_run())
    one = exporter(db, queue)
    await one.measure_rarely()
    assert metric("researchcopilot_dead_letters") == 0
    await db.execute(
        b"""UPDATE runs SET status = 'failed', finished_at = clock_timestamp(),
            error = '{"type": "x", "message": "y"}' WHERE run_id = %(r)s""",
        {"r": run_id},
    )
    await db.execute(
        b"INSERT INTO index_versions (workspace_id, version, format, document_ids, chunks)"
        b" VALUES (1, 1, 1, '{}', 0), (1, 2, 1, '{}', 0)"
    )
    await one.measure_rarely()
    assert metric("researchcopilot_dead_letters") == 1
    assert metric("researchcopilot_index_version", workspace="default") == 2
    assert 0 <= metric("researchcopilot_index_age_seconds", workspace="default") < 60
