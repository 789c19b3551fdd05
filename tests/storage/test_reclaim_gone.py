"""Taking back what named workers hold: of whom somebody knows that they are dead."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from tests.support import claim, eventually, ledger, new_run, row, submit, waits_in

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import WorkerInfo
from researchcopilot.core.settings import Settings
from researchcopilot.storage import moves, pods, workers
from researchcopilot.storage.db import Database
from researchcopilot.storage.moves import Gone, Moved
from researchcopilot.storage.pods import Said
from researchcopilot.storage.queue import Queue
from researchcopilot.worker.main import describe

pytestmark = pytest.mark.anyio
INFO = WorkerInfo(
    new_id(),
    {"runs": 4, "system": 1},
    (),
    host="h",
    pid=1,
    version="0",
    pod="a",
    pod_uid="uid-a",
    pod_namespace="n",
    process_started_at=datetime(2026, 1, 1, tzinfo=UTC),
)


async def held(db: Database, queue: Queue, n: int, *, worker_id: str, lease_s: float) -> list[str]:
    ids = await submit(db, queue, *(new_run() for _ in range(n)))
    await claim(db, ids, worker_id=worker_id, lease_s=lease_s)
    return ids


async def take(db: Database, *gone: Gone, limit: int = 100) -> Moved:
    return await moves.reclaim(db, limit=limit, max_losses=3, gone=gone)


def dead(worker_id: str, reason: str = "evicted") -> Gone:
    return Gone(worker_id, reason, "its Pod was evicted")


async def test_only_what_the_named_hold_and_whatever_their_leases(
    db: Database, queue: Queue
) -> None:
    """Also beside leases that have run out: those are the janitor's."""
    first, second, other = new_id(), new_id(), new_id()
    mine = await held(db, queue, 2, worker_id=first, lease_s=600)
    more = await held(db, queue, 1, worker_id=second, lease_s=0)
    left = await held(db, queue, 1, worker_id=other, lease_s=0)
    moved = await take(db, dead(first), dead(second, "oom_killed"))
    assert {run_id for run_id, _ in moved.verdicts} == {*mine, *more}
    by_run = dict(zip((r for r, _ in moved.verdicts), moved.reasons, strict=True))
    assert by_run == {**dict.fromkeys(mine, "evicted"), more[0]: "oom_killed"}
    assert set(moved.workers) == {first, second}
    assert (await row(db, left[0]))["status"] == "running"
    assert len(moved.head) == 3


async def test_nobody_is_named_and_nothing_is_taken(db: Database, queue: Queue) -> None:
    """No worker is not the same as whichever worker."""
    [run_id] = await held(db, queue, 1, worker_id=new_id(), lease_s=0)
    assert (await take(db)).verdicts == ()
    assert (await row(db, run_id))["status"] == "running"


async def test_a_run_that_another_worker_has_by_now_is_left(db: Database, queue: Queue) -> None:
    """Told late, or twice."""
    first, second = new_id(), new_id()
    [run_id] = await held(db, queue, 1, worker_id=first, lease_s=600)
    assert len((await take(db, dead(first))).verdicts) == 1
    await claim(db, [run_id], worker_id=second)
    assert (await take(db, dead(first))).verdicts == ()
    assert (await row(db, run_id))["worker_id"] == second
    assert await ledger(db, run_id) == [(1, "lost", False), (2, None, False)]


async def test_a_run_that_changes_hands_while_its_session_is_waited_for_is_left(
    db: Database, queue: Queue
) -> None:
    """Found without a lock, looked at again under it."""
    first, second = new_id(), new_id()
    [run_id] = await held(db, queue, 1, worker_id=first, lease_s=600)
    async with db.transaction() as connection:
        await connection.execute(b"SELECT 1 FROM sessions FOR UPDATE")
        taking = asyncio.create_task(take(db, dead(first)))
        await eventually(lambda: waits_in(db, "reclaim_2"))
        await connection.execute(b"UPDATE runs SET worker_id = %(w)s, claim_no = 2", {"w": second})
    assert (await taking).verdicts == ()
    assert (await row(db, run_id))["worker_id"] == second


async def test_two_at_once_take_each_run_once(db: Database, queue: Queue) -> None:
    """Two operators, or an operator and the janitor."""
    worker = new_id()
    ids = await held(db, queue, 50, worker_id=worker, lease_s=0)
    done = await asyncio.gather(
        *(take(db, dead(worker)) for _ in range(4)),
        *(moves.reclaim(db, limit=100, max_losses=3) for _ in range(4)),
    )
    moved = [run_id for one in done for run_id, _ in one.verdicts]
    assert sorted(moved) == sorted(ids)
    assert {(await row(db, run_id))["losses"] for run_id in ids} == {1}


async def test_a_group_is_no_larger_than_asked_for(db: Database, queue: Queue) -> None:
    worker = new_id()
    await held(db, queue, 5, worker_id=worker, lease_s=600)
    sizes = [len((await take(db, dead(worker), limit=2)).verdicts) for _ in range(4)]
    assert sizes == [2, 2, 1, 0]


async def test_the_function_of_before_still_works(db: Database, queue: Queue) -> None:
    """A janitor of the version before calls it until the roll-out is through."""
    [run_id] = await held(db, queue, 1, worker_id=new_id(), lease_s=0)
    rows = await db.rows(b"SELECT run_id, verdict, reason FROM reclaim_1(10, 3)")
    assert rows == [(run_id, "queued", "silent")]


# Which processes of a Pod


async def test_a_worker_tells_where_it_runs_and_since_when(
    db: Database, settings: Settings
) -> None:
    told = replace(settings.worker, pod="a", pod_uid="u", pod_namespace="n")
    info = describe(replace(settings, worker=told), {})
    await workers.register(db, info)
    found = await db.one(b"SELECT * FROM workers")
    assert found is not None
    assert (found["pod"], found["pod_uid"], found["pod_namespace"]) == ("a", "u", "n")
    assert abs((datetime.now(UTC) - found["process_started_at"]).total_seconds()) < 5


async def dead_of(db: Database, *said: Said) -> list[tuple[str, int]]:
    found = await pods.dead_processes(db, said, lease_s=60)
    return sorted((one.worker_id, one.place) for one in found)


async def test_a_process_is_named_once_by_the_first_that_says_so(db: Database) -> None:
    await workers.register(db, INFO)
    said = [Said("other", None, True), Said("uid-a", None, True), Said("uid-a", None, True)]
    assert await dead_of(db, *said) == [(INFO.worker_id, 1)]
    [found] = await pods.dead_processes(db, said, lease_s=60)
    assert set(found.queues) == {"runs", "system"}


async def test_of_a_restarted_container_only_what_started_before_it(db: Database) -> None:
    later = replace(INFO, worker_id=new_id(), process_started_at=datetime(2026, 1, 2, tzinfo=UTC))
    for info in (INFO, later):
        await workers.register(db, info)
    between = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert await dead_of(db, Said("uid-a", between, True)) == [(INFO.worker_id, 0)]
    assert len(await dead_of(db, Said("uid-a", None, True))) == 2


async def test_what_is_not_sure_is_believed_of_the_silent_alone(db: Database) -> None:
    await workers.register(db, INFO)
    assert await dead_of(db, Said("uid-a", None, False)) == []
    await db.execute(b"UPDATE workers SET seen_at = seen_at - interval '31 seconds'")
    assert await dead_of(db, Said("uid-a", None, False)) == [(INFO.worker_id, 0)]


async def test_those_that_hold_nothing_and_were_cleared_are_left_out(
    db: Database, queue: Queue
) -> None:
    """A Pod in a crash loop has had a hundred of them."""
    await workers.register(db, INFO)
    await db.execute(b"UPDATE workers SET seen_at = seen_at - interval '3 minutes'")
    assert await dead_of(db, Said("uid-a", None, True)) == []
    await held(db, queue, 1, worker_id=INFO.worker_id, lease_s=600)
    assert await dead_of(db, Said("uid-a", None, True)) == [(INFO.worker_id, 0)]


async def test_only_who_holds_runs_and_is_silent_is_asked_about(db: Database, queue: Queue) -> None:
    idle = replace(INFO, worker_id=new_id(), pod="idle", pod_uid="uid-idle")
    foreign = replace(INFO, worker_id=new_id(), pod_uid="uid-f", pod_namespace="m")
    for info in (INFO, idle, foreign):
        await workers.register(db, info)
    for info in (INFO, foreign):
        await held(db, queue, 1, worker_id=info.worker_id, lease_s=600)

    async def asked() -> list[tuple[str, str]]:
        return await pods.silent_pods(db, "n", lease_s=60, limit=10)

    assert await asked() == []
    await db.execute(b"UPDATE workers SET seen_at = seen_at - interval '31 seconds'")
    assert await asked() == [("uid-a", "a")]


async def test_the_longest_run_of_each_pod_is_what_its_cost_goes_by(
    db: Database, queue: Queue
) -> None:
    await workers.register(db, INFO)
    await held(db, queue, 2, worker_id=INFO.worker_id, lease_s=600)
    [run_id, *_] = [r[0] for r in await db.rows(b"SELECT run_id FROM runs")]
    await db.execute(
        b"UPDATE claims SET started_at = started_at - interval '1 hour' WHERE run_id = %(r)s",
        {"r": run_id},
    )
    found = await pods.busy_pods(db, ["uid-a", "uid-idle"])
    assert found.keys() == {"uid-a"} and 3600 <= found["uid-a"] < 3700
