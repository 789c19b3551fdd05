"""A run in a process of its own: the agent notices nothing, and whatever ends the process ends this
run and no other.

Starting a process takes some tenths of a second, so these runs are one batch: RUNS, all in one
worker, six at a time, in one attempt each. Each test looks at its own.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.agents_in_processes import ALL
from tests.conftest import Servers
from tests.services.isolated import announce, gone, marked, one_try
from tests.support import ended, ledger, metric, submit, with_worker, working

from researchcopilot.core import settings as core_settings
from researchcopilot.core.settings import Settings
from researchcopilot.storage import events
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio
MEMORY_MB = 400

RUNS = {
    "who": one_try("says_who"),
    "who else": one_try("says_who"),
    "all": one_try("uses_all", 21, timeout_s=60),
    "in thread": one_try("uses_all_in_thread", 21),
    "in thread too": one_try("uses_all_in_thread", 4),
    "wrong steps": one_try("wrong_steps"),
    "permanent": one_try("raises", "KeyError", max_attempts=5),
    "beside": one_try("sleeps", 1),
    "segfault": one_try("segfault"),
    "exit 3": one_try("leaves", 3),
    "exit 0": one_try("leaves", 0),
    "abort": one_try("kills_itself", signal.SIGABRT),
    "kill": one_try("kills_itself", signal.SIGKILL),
    "bomb": one_try("eats"),
    "nonsense": one_try("talks_nonsense"),
    "ghost": one_try("ghost"),
    "forks": one_try("forks", "forked"),
    "forks and dies": one_try("forks", "crashed"),
}


@dataclass(frozen=True, slots=True)
class Batch:
    """RUNS when they have ended, what their agents have marked, and what was kept of them."""

    runs: dict[str, dict[str, Any]]
    ledgers: dict[str, list[tuple[int, str | None, bool]]]
    steps: set[tuple[str, str, Any]]
    told: list[tuple[str, str, str]]
    cached: str
    marks: Path


@pytest.fixture(scope="module")
def batch(
    servers: Servers, installed: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Batch]:
    servers.flusher.flushall()
    marks = tmp_path_factory.mktemp("marks")
    with servers.database("test_isolation") as url, pytest.MonkeyPatch.context() as environment:
        settings = core_settings.load({"RC_DATABASE_URL": url, "RC_REDIS_URL": servers.valkey.url})
        settings = with_worker(settings, isolation="process", memory_limit_mb=MEMORY_MB)
        announce(installed, marks, environment)
        yield asyncio.run(run_all(settings, marks))


async def run_all(settings: Settings, marks: Path) -> Batch:
    async def ghost(ctx: Any, given: Any) -> Any:
        """Is known to this worker, and not where its processes look."""

    db, queue = Database(settings.database), Queue(settings.redis)
    await db.open()
    ids = {name: run.run_id for name, run in RUNS.items()}
    async with working(settings, db, queue, {**ALL, "ghost": ghost}, queues={"runs": 6}) as worker:
        await submit(db, queue, *RUNS.values())
        batch = Batch(
            {name: await ended(db, run_id, 40) for name, run_id in ids.items()},
            {name: await ledger(db, run_id) for name, run_id in ids.items()},
            set(await db.rows(b"SELECT run_id, name, value #>> '{}' FROM steps")),
            await events.read(queue, ids["all"]),
            (worker.executor.cache_dir / "file").read_text(),
            marks,
        )
    await db.close()
    await queue.close()
    return batch


# The agent notices nothing


async def test_it_has_a_process_and_a_group_of_its_own(batch: Batch) -> None:
    first, second = (batch.runs[name]["result"] for name in ("who", "who else"))
    assert first["pid"] == first["group"] != second["pid"] == second["group"]
    assert first["parent"] == second["parent"] == os.getpid()
    assert metric("researchcopilot_runs_isolated_total", why="setting") >= len(RUNS)


async def test_all_of_its_context_is_there(batch: Batch) -> None:
    found = batch.runs["all"]
    assert found["status"] == "succeeded", found["error"]
    result, run_id = found["result"], found["run_id"]
    assert result["steps"] == [42, "waited"]
    assert result["workspace"] == "default"
    assert result["messages"] == [["user", {"content": 21}, True]]
    assert result["run"] == [run_id, 1, run_id, 21]
    assert 50 < result["left"] < 60
    assert result["cancelled"] is False
    assert {(run_id, "double", "42"), (run_id, "later", "waited")} <= batch.steps
    assert [(id_, kind) for id_, kind, _ in batch.told] == [("1-1", "began"), ("1-2", "done")]
    assert batch.cached == "kept"


async def test_a_plain_function_has_it_too_and_runs_do_not_mix(batch: Batch) -> None:
    one, other = (batch.runs[name]["result"] for name in ("in thread", "in thread too"))
    assert (one[:2], other[:2]) == ([42, 1], [8, 1])
    assert len({one[2], other[2], os.getpid()}) == 3


async def test_its_errors_are_judged_by_its_own_policy(batch: Batch) -> None:
    found = batch.runs["permanent"]
    assert (found["status"], found["attempts"]) == ("failed", 1)
    assert found["error"]["type"] == "KeyError"
    assert "in fails" in found["error"]["trace"]
    assert "KeyError permanent" in found["error"]["final"]


async def test_what_the_worker_refuses_is_refused_there(batch: Batch) -> None:
    told = batch.runs["wrong steps"]["result"]
    assert [words.split(":")[0] for words in told] == ["DuplicateStep", "Permanent", "BadResult"]
    assert "'a' was used before" in told[0]
    kept = {step[1:] for step in batch.steps if step[0] == RUNS["wrong steps"].run_id}
    assert kept == {("a", "1")}


# What ends its process ends this run only


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("segfault", ["SIGSEGV", "native library"]),
        ("exit 3", ["code 3", "os._exit"]),
        ("exit 0", ["code 0", "os._exit"]),
        ("abort", ["SIGABRT", "RC_WORKER_MEMORY_LIMIT_MB"]),
        ("kill", ["SIGKILL", "out of memory"]),
        ("nonsense", ["no message of ours"]),
        ("ghost", ["code 1 before the agent began"]),
        ("forks and dies", ["code 5"]),
    ],
)
async def test_a_crash_is_told_and_counts_as_an_attempt(
    batch: Batch, name: str, words: list[str]
) -> None:
    found = batch.runs[name]
    assert (found["status"], found["error"]["type"]) == ("failed", "agent_crashed")
    for word in words:
        assert word in found["error"]["message"]
    assert (found["attempts"], found["losses"]) == (1, 0)
    assert batch.ledgers[name] == [(1, "failed", True)]


async def test_no_other_run_is_lost_by_it(batch: Batch) -> None:
    beside = batch.runs["beside"]
    assert (beside["status"], beside["attempts"], beside["losses"]) == ("succeeded", 1, 0)


async def test_the_stack_of_a_segfault_is_kept(batch: Batch) -> None:
    assert "in segfault" in batch.runs["segfault"]["error"]["trace"]
    assert metric("researchcopilot_agents_crashed_total", how="SIGSEGV") >= 1


async def test_a_memory_bomb_is_told_of_its_limit(batch: Batch) -> None:
    error = batch.runs["bomb"]["error"]
    assert error["type"] == "out_of_memory"
    for word in (f"{MEMORY_MB} MB", "RC_WORKER_MEMORY_LIMIT_MB"):
        assert word in error["message"]
    assert "in eats" in error["trace"]


def test_the_kernel_takes_the_agent_s_process_before_the_worker() -> None:
    """A kubelet gives a worker's container up to 999 of 1000: an agent that has less would live,
    and its worker, with all the other runs, would be killed in its place."""
    code = (
        "import pathlib, sys; from researchcopilot.worker.child import limit_memory\n"
        "own = pathlib.Path('/proc/self/oom_score_adj'); own.write_text('998'); limit_memory(0)\n"
        "sys.exit(int(own.read_text()) <= 998)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


# Nothing of it is left


async def test_what_it_has_started_ends_with_it(batch: Batch) -> None:
    """Also where that holds the pipe open: the worker does not wait for it."""
    assert batch.runs["forks"]["status"] == "succeeded"
    for name in ("forked", "crashed"):
        await gone(await marked(batch.marks, name))
