"""Agents that do what they should not. Each of their runs ends, and its error tells a person what
was wrong, where, and what to do; the ledger keeps it for every attempt."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.support import (
    delayed,
    ended,
    eventually,
    ledger,
    metric,
    returns,
    row,
    run_agent,
    status_is,
    submit_one,
    with_worker,
    working,
)

from researchcopilot.agents.contract import Context, SyncContext
from researchcopilot.core.errors import LostClaim, Permanent, RetryLater
from researchcopilot.core.settings import Settings
from researchcopilot.storage.db import Database
from researchcopilot.storage.messages import last_messages
from researchcopilot.storage.queue import Queue
from researchcopilot.worker import execute

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def little_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "GRACE_S", 0.1)


@pytest.fixture
def quick(settings: Settings) -> Settings:
    return with_worker(settings, run_timeout_s=0.2, retry_base_s=0.001)


class Mapping(dict[str, Any]):
    """JSON's encoder asks it for its items."""

    def items(self) -> Any:
        raise KeyError("no items today")


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Sudden(BaseException):
    """Neither Exception nor anything that Python knows."""


def nested(levels: int, inside: Any = None) -> Any:
    for _ in range(levels):
        inside = [inside]
    return inside


def circle(*inside: Any) -> list[Any]:
    found: list[Any] = [*inside]
    found.append(found)
    return found


def raises(error: BaseException) -> Callable[..., Any]:
    async def agent(ctx: Context, given: Any) -> Any:
        raise error

    return agent


def raises_in_thread(error: BaseException) -> Callable[..., Any]:
    def agent(ctx: SyncContext, given: Any) -> Any:
        raise error

    return agent


# What it returns


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": [1, {2}]}, ["$.a[1]", "set", "list"]),
        ({"x": float("nan")}, ["$.x", "nan", "null"]),
        (b"abc", ["$", "bytes", "decode"]),
        (circle({1}), ["$[0]", "set"]),
        ({"deep": nested(5_000)}, ["deeper than 100 levels", "contains itself"]),
        ({(1, 2): 3}, ["$", "key", "tuple"]),
        (Mapping(a=1), ["no items today"]),
        (10**5000, ["$", "digits"]),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, list) else "-".join(
        word for word in value if isinstance(word, str)) or "list",
)  # fmt: skip
async def test_what_is_not_json_fails_at_once_and_says_where(
    quick: Settings, db: Database, queue: Queue, value: Any, words: list[str]
) -> None:
    found = await run_agent(quick, db, queue, returns(value))
    assert (found["status"], found["error"]["type"]) == ("failed", "bad_result")
    for word in words:
        assert word in found["error"]["message"]
    assert await ledger(db, found["run_id"]) == [(1, "failed", True)]
    [(kept,)] = await db.rows(b"SELECT error FROM claims")
    assert kept == found["error"]


async def test_a_plain_function_that_returns_a_coroutine_is_told_to_be_async(
    quick: Settings, db: Database, queue: Queue
) -> None:
    def agent(ctx: SyncContext, given: Any) -> Any:
        return returns(1)(ctx, given)

    found = await run_agent(quick, db, queue, agent)
    assert found["error"]["type"] == "bad_result"
    assert "async def" in found["error"]["message"]


async def test_an_object_with_an_async_call_is_an_async_agent(
    quick: Settings, db: Database, queue: Queue
) -> None:
    class Agent:
        async def __call__(self, ctx: Context, given: Any) -> Any:
            return await ctx.step("one", lambda: 1)

    found = await run_agent(quick, db, queue, Agent())
    assert (found["status"], found["result"]) == ("succeeded", 1)


async def test_ten_megabytes_are_refused_with_size_and_limit(
    quick: Settings, db: Database, queue: Queue
) -> None:
    found = await run_agent(quick, db, queue, returns("x" * 10_485_760))
    assert found["status"] == "failed"
    assert found["error"]["type"] == "bad_result"
    for word in ("10.0 MB", "1.0 MB", "RC_MAX_RESULT_BYTES", "elsewhere"):
        assert word in found["error"]["message"]


async def test_just_within_depth_and_size_is_kept(
    quick: Settings, db: Database, queue: Queue
) -> None:
    value = [nested(98), "é" * 500_000]
    found = await run_agent(quick, db, queue, returns(value))
    assert found["result"] == value


async def test_nul_and_lone_surrogates_are_replaced(
    quick: Settings, db: Database, queue: Queue
) -> None:
    value = {"answer": "a\x00b\ud800c\\u0000", "k\x00": ["\udfff"], "n": 1}
    found = await run_agent(quick, db, queue, returns(value))
    clean = {"answer": "a\ufffdb\ufffdc\\u0000", "k\ufffd": ["\ufffd"], "n": 1}
    assert (found["status"], found["result"]) == ("succeeded", clean)
    [_, answer] = await last_messages(db, 1, found["session_id"], 10)
    assert answer.payload["content"] == clean["answer"]


async def test_nothing_is_a_result_too(quick: Settings, db: Database, queue: Queue) -> None:
    found = await run_agent(quick, db, queue, returns(None))
    assert (found["status"], found["result"]) == ("succeeded", None)
    assert await db.rows(b"SELECT result = 'null' FROM runs") == [(True,)]


# What it raises


@pytest.mark.parametrize(
    ("agent", "kind", "words"),
    [
        (raises(ValueError("the key is missing")), "ValueError", ["the key is missing"]),
        (raises(ValueError("a\x00b\ud800")), "ValueError", ["a\ufffdb\ufffd"]),
        (raises(ValueError()), "ValueError", ["ValueError"]),
        (raises(Mute()), "tests.services.test_worker_agents.Mute", ["cannot be shown"]),
        (raises(ValueError("m" * 1_000_000)), "ValueError", ["mmm…"]),
        (raises(Sudden("?")), "tests.services.test_worker_agents.Sudden", ["?"]),
        (raises(StopIteration(3)), "RuntimeError", ["StopIteration"]),
        (raises_in_thread(StopIteration(3)), "RuntimeError", ["StopIteration", "3"]),
        (raises_in_thread(Sudden("?")), "tests.services.test_worker_agents.Sudden", ["?"]),
        (raises(SystemExit(3)), "agent_exited", ["sys.exit(3)", "Permanent"]),
        (raises_in_thread(SystemExit("bye")), "agent_exited", ["sys.exit('bye')"]),
        (raises(KeyboardInterrupt()), "agent_exited", ["KeyboardInterrupt"]),
        (raises(asyncio.CancelledError()), "agent_cancelled", ["nobody", "awaited"]),
        (raises(RetryLater("busy", after=0.001)), "retry_later", ["busy"]),
        (
            raises(ExceptionGroup("two", [ValueError("one"), OSError("other")])),
            "ExceptionGroup",
            ["two", "ValueError: one", "OSError: other"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_what_may_pass_is_tried_again_and_each_attempt_tells_why(
    quick: Settings, db: Database, queue: Queue, agent: Any, kind: str, words: list[str]
) -> None:
    async with working(quick, db, queue, {"it": agent}):
        run_id = await submit_one(db, queue, "it", max_attempts=2)
        await status_is(db, run_id, "queued", "failed")
        await eventually(lambda: due(queue, db, run_id))
        found = await ended(db, run_id)
    assert (found["status"], found["error"]["type"]) == ("failed", kind)
    for word in words:
        assert word in found["error"]["message"]
    assert len(found["error"]["message"]) <= 2_000
    assert await ledger(db, run_id) == [(1, "retry", True), (2, "failed", True)]
    kept = await db.rows(b"SELECT error ->> 'type' FROM claims")
    assert kept == [(kind,)] * 2


async def due(queue: Queue, db: Database, run_id: str) -> bool:
    """The scheduler's part; true once the run is in its second claim."""
    await queue.due("runs")
    return int((await row(db, run_id))["claim_no"]) == 2


async def test_the_trace_shows_where_it_was_raised(
    quick: Settings, db: Database, queue: Queue
) -> None:
    def looks_up(key: str) -> Any:
        return dict[str, Any]()[key]

    async def agent(ctx: Context, given: Any) -> Any:
        return looks_up("missing")

    found = await run_agent(quick, db, queue, agent, max_attempts=1)
    assert "in looks_up" in found["error"]["trace"]
    assert "KeyError: 'missing'" in found["error"]["trace"]


async def test_endless_recursion_is_an_error_of_its_run(
    quick: Settings, db: Database, queue: Queue
) -> None:
    def down(level: int) -> int:
        return down(level + 1)

    async def agent(ctx: Context, given: Any) -> Any:
        return down(0)

    found = await run_agent(quick, db, queue, agent, max_attempts=1)
    assert found["error"]["type"] == "RecursionError"
    assert "in down" in found["error"]["trace"]
    assert len(found["error"]["trace"]) <= 8_000


async def test_permanent_is_not_tried_again(quick: Settings, db: Database, queue: Queue) -> None:
    try:
        raise OSError("disk")
    except OSError as cause:
        error = Permanent("There is no such customer.")
        error.__cause__ = cause
    found = await run_agent(quick, db, queue, raises(error), max_attempts=5)
    assert (found["status"], found["attempts"]) == ("failed", 1)
    assert found["error"]["type"] == "permanent"
    assert found["error"]["message"] == "There is no such customer."
    assert "OSError: disk" in found["error"]["trace"]


@pytest.mark.parametrize("how", [ExceptionGroup, BaseExceptionGroup])
async def test_what_a_task_group_wraps_is_still_what_it_is(
    quick: Settings, db: Database, queue: Queue, how: Any
) -> None:
    async def agent(ctx: Context, given: Any) -> Any:
        raise how("of a TaskGroup", [how("and another", [Permanent("no such customer")])])

    found = await run_agent(quick, db, queue, agent)
    assert (found["error"]["type"], found["attempts"]) == ("permanent", 1)
    assert found["error"]["message"] == "no such customer"


async def test_retry_later_waits_so_long_without_a_slot(
    quick: Settings, db: Database, queue: Queue
) -> None:
    async with working(quick, db, queue, {"it": raises(RetryLater("busy", after=40))}):
        run_id = await submit_one(db, queue, "it")
        await eventually(lambda: delayed(queue))
        found = await row(db, run_id)
        assert (found["status"], found["attempts"]) == ("queued", 1)
        [(wait,)] = await db.rows(
            b"SELECT extract(epoch FROM run_at - clock_timestamp())::float8 FROM runs"
        )
        assert 30 < wait <= 40
        assert found["error"]["message"] == "busy"


@pytest.mark.parametrize("after", [float("nan"), float("inf"), -5.0, 1e30, None, "soon"])
async def test_an_odd_wait_ends_in_an_ordinary_retry(
    quick: Settings, db: Database, queue: Queue, after: Any
) -> None:
    async with working(quick, db, queue, {"it": raises(RetryLater("busy", after=after))}):
        run_id = await submit_one(db, queue, "it")
        await eventually(lambda: ledger_closed(db))
        found = await row(db, run_id)
        # Not failed for its odd wait, unless that is past the run's own deadline.
        assert found["error"]["type"] == "retry_later"
        assert found["status"] == ("failed" if after in (float("inf"), 1e30) else "queued")


async def ledger_closed(db: Database) -> bool:
    return bool(await db.rows(b"SELECT 1 FROM claims WHERE outcome IS NOT NULL"))


async def test_an_agent_that_raises_lost_claim_is_left_to_its_lease(
    quick: Settings, db: Database, queue: Queue
) -> None:
    before = metric("researchcopilot_runs_finished_total", queue="runs", agent="it",
                    outcome="stale")  # fmt: skip
    async with working(quick, db, queue, {"it": raises(LostClaim())}) as worker:
        run_id = await submit_one(db, queue, "it")
        await eventually(lambda: metric("researchcopilot_runs_finished_total", queue="runs",
                                        agent="it", outcome="stale") > before)  # fmt: skip
        await eventually(lambda: not len(worker.hands))
        assert (await row(db, run_id))["status"] == "running"
