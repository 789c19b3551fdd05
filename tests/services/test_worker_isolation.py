"""The life of a process of one run: where it comes from, what it keeps for the next claim, and that
nothing of it is left when its run has ended, or its worker."""

import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.agents_in_processes import ALL
from tests.conftest import Parts
from tests.services.isolated import announce, children, gone, lives, marked, one_try
from tests.support import (
    ended,
    eventually,
    ledger,
    metric,
    row,
    running,
    status_is,
    submit,
    submit_one,
    with_recovery,
    with_worker,
    working,
)

from researchcopilot.core.settings import Settings
from researchcopilot.storage import moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.push import Pusher
from researchcopilot.storage.queue import Queue
from researchcopilot.worker import execute, isolated_call
from researchcopilot.worker.worker import Worker

pytestmark = pytest.mark.anyio


@pytest.fixture
def isolated(
    settings: Settings, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    announce(installed, tmp_path, monkeypatch)
    settings = with_recovery(settings, lease_s=5.0)
    return with_worker(settings, isolation="process", retry_base_s=0.001)


@pytest.fixture
def adopts() -> Iterator[None]:
    """This process adopts the orphans below it, as process 1 of a container does."""
    prctl, set_subreaper = ctypes.CDLL(None).prctl, 36
    prctl(set_subreaper, 1)
    yield
    prctl(set_subreaper, 0)


@pytest.fixture
async def worker(isolated: Settings, db: Database, queue: Queue) -> AsyncIterator[Worker]:
    async with working(isolated, db, queue, ALL) as worker:
        yield worker


# Where it comes from


async def test_where_no_process_can_be_started_the_run_is_tried_again(
    isolated: Settings, db: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/python")
    async with working(isolated, db, queue, ALL):
        run_id = await submit_one(db, queue, "says_who", max_attempts=1)
        error = (await ended(db, run_id))["error"]
    assert error["type"] == "agent_crashed"
    assert "No process can be started" in error["message"]


async def test_a_spare_that_has_died_costs_nothing(
    worker: Worker, db: Database, queue: Queue
) -> None:
    spare = await eventually(lambda: worker.isolation._spare)
    spare.signal(signal.SIGKILL)
    await spare.exited.wait()
    found = await ended(db, await submit_one(db, queue, "says_who", max_attempts=1), 20)
    assert (found["status"], found["attempts"]) == ("succeeded", 1)
    assert found["result"]["pid"] != spare.pid


async def test_after_two_losses_a_run_is_isolated_whatever_the_setting(
    isolated: Settings, db: Database, queue: Queue
) -> None:
    before = metric("researchcopilot_runs_isolated_total", why="losses")
    one, two = one_try("says_who"), one_try("says_who")
    await submit(db, queue, one, two)
    for run, losses in ((one, 1), (two, 2)):
        await db.execute(
            b"UPDATE runs SET losses = %(n)s, claim_no = %(n)s WHERE run_id = %(r)s",
            {"n": losses, "r": run.run_id},
        )
    async with working(with_worker(isolated, isolation="none"), db, queue, ALL):
        pids = [(await ended(db, r.run_id, 20))["result"]["pid"] for r in (one, two)]
    assert pids[0] == os.getpid() != pids[1]
    assert metric("researchcopilot_runs_isolated_total", why="losses") == before + 1


async def test_steps_outlive_the_process(worker: Worker, db: Database, queue: Queue) -> None:
    """It crashed after a step: the next claim is given its value, from another process."""
    crashes = {"agent": "keeps_steps", "reason": "crashed"}
    before = metric("researchcopilot_retries_total", **crashes)
    run_id = await submit_one(db, queue, "keeps_steps")

    async def second() -> bool:
        await queue.due("runs")
        return bool((await row(db, run_id))["claim_no"] == 2)

    await eventually(second, within=20)
    first, last = (await ended(db, run_id, 20))["result"]
    assert first != last
    assert await ledger(db, run_id) == [(1, "retry", True), (2, "succeeded", True)]
    assert metric("researchcopilot_retries_total", **crashes) == before + 1


# Nothing of it is left


async def test_one_that_hangs_up_and_goes_on_is_ended(
    worker: Worker, db: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated_call, "EXIT_S", 0.2)
    found = await ended(db, await submit_one(db, queue, "hangs_up", max_attempts=1), 20)
    assert found["error"]["type"] == "agent_crashed"
    assert "closed the pipe" in found["error"]["message"]


async def test_cancelled_it_is_gone_with_its_group_within_the_lease(
    worker: Worker, db: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It ignores SIGTERM and swallows its cancellation."""
    monkeypatch.setattr(execute, "GRACE_S", 0.3)
    run_id = await submit_one(db, queue, "clings")
    numbers = [await marked(tmp_path, "program"), await marked(tmp_path, "clings")]
    pusher = Pusher(queue)
    _, _, asked = await moves.cancel(db, 1, [run_id])
    pusher.tell(asked)
    found = await ended(db, run_id)
    assert found["status"] == "cancelled"
    lasted = (found["finished_at"] - found["cancel_requested_at"]).total_seconds()
    assert lasted < worker.settings.recovery.lease_s
    for number in numbers:
        await gone(number)
    await pusher.close()


async def test_past_its_time_it_is_gone_and_the_trace_shows_where_it_was(
    worker: Worker, db: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that blocks its loop, one that can be told, and one that makes the best of it."""
    monkeypatch.setattr(execute, "GRACE_S", 0.3)
    runs = [one_try(agent, 60, timeout_s=0.5) for agent in ("naps", "sleeps", "says_so_far")]
    await submit(db, queue, *runs)
    deaf, heard, returned = [await ended(db, run.run_id, 20) for run in runs]
    assert deaf["error"]["type"] == heard["error"]["type"] == "timed_out"
    assert "in naps" in deaf["error"]["trace"]
    assert "in sleeps" in heard["error"]["trace"]
    assert (returned["status"], returned["result"]) == ("succeeded", "so far")
    await gone(await marked(tmp_path, "naps"))


async def test_a_lost_claim_writes_nothing_and_its_process_is_gone(
    worker: Worker, db: Database, queue: Queue, tmp_path: Path
) -> None:
    run_id = await submit_one(db, queue, "sleeps", input=60)
    pid = await marked(tmp_path, "sleeps")
    await db.execute(b"UPDATE runs SET lease_until = clock_timestamp() - interval '1 ms'")
    await moves.reclaim(db, limit=1, max_losses=3)
    await gone(pid)
    assert (await row(db, run_id))["status"] == "queued"


async def test_a_drain_ends_it_and_releases_its_run(
    isolated: Settings, db: Database, queue: Queue, tmp_path: Path
) -> None:
    async with working(with_worker(isolated, drain_s=0.1), db, queue, ALL) as worker:
        run_id = await submit_one(db, queue, "sleeps", input=60)
        pid = await marked(tmp_path, "sleeps")
        spare = await eventually(lambda: worker.isolation._spare)
        worker.stop()
        found = await status_is(db, run_id, "queued")
    assert (found["attempts"], found["losses"]) == (0, 0)
    assert not {pid, spare.pid} & set(children(os.getpid()))


async def test_it_dies_with_its_worker(
    isolated: Settings, parts: Parts, db: Database, queue: Queue, tmp_path: Path
) -> None:
    worker = parts("worker", RC_WORKER_ISOLATION="process", PYTHONPATH=os.environ["PYTHONPATH"])
    run_id = await submit_one(db, queue, "naps", input=60)
    pid = await marked(tmp_path, "naps")
    await running(db, run_id)
    its = children(worker.child.pid)
    assert pid in its and len(its) == 2  # and the one that is kept ready
    os.kill(worker.child.pid, signal.SIGKILL)
    for number in its:
        await gone(number)


async def test_what_it_has_started_dies_with_its_worker_too(
    isolated: Settings, parts: Parts, db: Database, queue: Queue, tmp_path: Path
) -> None:
    """kill -9 of the worker: the kernel ends the run's process, and what that has started would go
    on with work that is another worker's by then. Red without worker/child.py:
    `keep_watch(os.getpid(), (end, dump))`
    """
    worker = parts("worker", RC_WORKER_ISOLATION="process", PYTHONPATH=os.environ["PYTHONPATH"])
    run_id = await submit_one(db, queue, "clings")
    numbers = [await marked(tmp_path, name) for name in ("program", "clings")]
    await running(db, run_id)
    os.kill(worker.child.pid, signal.SIGKILL)
    for number in numbers:
        await gone(number)


async def test_what_it_has_left_behind_is_no_zombie_of_process_1(
    worker: Worker, db: Database, queue: Queue, tmp_path: Path, adopts: None
) -> None:
    """In a container the worker is process 1: orphans become its children, and one that nobody
    waits for keeps its number for ever. Red without worker/group.py: `self._reap()`
    """
    run_id = await submit_one(db, queue, "forks", input="left")
    assert (await ended(db, run_id, 20))["status"] == "succeeded"
    left = await marked(tmp_path, "left")
    await eventually(lambda: not Path(f"/proc/{left}").exists())
    await eventually(lambda: not [pid for pid in children(os.getpid()) if not lives(pid)])
