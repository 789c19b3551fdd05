"""What follows a failed attempt: by the agent's own policy, by what it says of one error, and else
another try after a wait that is spread."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.support import ended, eventually, new_run, row, submit, with_worker, working

from researchcopilot.agents.contract import Context, agent
from researchcopilot.agents.registry import make_agent
from researchcopilot.core.errors import ConfigError, Permanent, RetryLater, TimedOut
from researchcopilot.core.settings import Settings
from researchcopilot.storage.claims import read_claims
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.workers import known_agents

pytestmark = pytest.mark.anyio


class NoSuchCustomer(LookupError):
    pass


def raises(error: BaseException, **policy: Any) -> Callable[..., Any]:
    @agent(**policy)
    async def it(ctx: Context, given: Any) -> Any:
        raise error

    return it


def sleeping(**policy: Any) -> Callable[..., Any]:
    @agent(**policy)
    async def sleeps(ctx: Context, given: Any) -> Any:
        await asyncio.sleep(60)

    return sleeps


# Name → (agent, why no attempt follows; None: one does)
CASES: dict[str, tuple[Callable[..., Any], str | None]] = {
    "unknown": (raises(ValueError("?")), None),
    "permanent": (raises(ValueError("?"), permanent=(ValueError,)), "ValueError permanent"),
    "subclass": (raises(NoSuchCustomer("?"), permanent=(LookupError,)), "NoSuchCustomer permanent"),
    "another": (raises(OSError("?"), permanent=(LookupError,)), None),
    "in a group": (
        raises(ExceptionGroup("tasks", [ValueError("?")]), permanent=(ValueError,)),
        "ValueError permanent",
    ),
    "worth it": (raises(OSError("?"), retry_on=(OSError,)), None),
    "not worth it": (raises(ValueError("?"), retry_on=(OSError,)), "other errors than ValueError"),
    "said so": (raises(Permanent("never"), retry_on=(Permanent,)), "Permanent is permanent"),
    "asked for": (raises(RetryLater("busy", after=3), permanent=(RetryLater,), retry_on=()), None),
    "found": (sleeping(retry_on=(OSError,)), None),
    "found, final": (sleeping(permanent=(TimedOut,)), "TimedOut permanent"),
}


async def test_the_policy_decides_and_says_why(
    settings: Settings, db: Database, queue: Queue
) -> None:
    agents = {name.replace(", ", " "): made for name, (made, _) in CASES.items()}
    quick = with_worker(settings, retry_base_s=600.0, retry_cap_s=600.0)
    runs = {name: new_run(agent=name.replace(", ", " "), timeout_s=0.2) for name in CASES}
    async with working(quick, db, queue, agents, queues={"runs": 12}):
        await submit(db, queue, *runs.values())
        for name, (_, why) in CASES.items():
            found = await first_attempt(db, runs[name].run_id)
            assert found["status"] == ("queued" if why is None else "failed"), name
            assert found["attempts"] == 1
            assert (why or "") in found["error"].get("final", ""), name
            [record] = await read_claims(db, 1, found["run_id"])
            assert record.outcome == ("retry" if why is None else "failed")
            assert record.error == found["error"]


async def first_attempt(db: Database, run_id: str) -> dict[str, Any]:
    """The run once its first attempt is over."""

    async def look() -> dict[str, Any] | None:
        found = await row(db, run_id)
        return found if found["claim_no"] == 1 and found["status"] != "running" else None

    found: dict[str, Any] = await eventually(look)
    return found


async def waits(db: Database, queue: Queue, settings: Settings, made: Any) -> list[float]:
    """Seconds that its runs wait after their first attempt."""
    runs = [new_run(agent="it") for _ in range(40)]
    async with working(settings, db, queue, {"it": made}, queues={"runs": 40}):
        await submit(db, queue, *runs)
        for run in runs:
            await first_attempt(db, run.run_id)
    rows = await db.rows(b"""
        SELECT extract(epoch FROM r.run_at - c.finished_at)::float8
        FROM runs r JOIN claims c USING (run_id)""")
    return sorted(float(wait) for (wait,) in rows)


async def test_waits_are_spread_over_what_the_agent_allows(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """Full jitter: from nothing to the cap, so that a herd does not come back as one."""
    made = raises(ValueError("?"), retry_base_s=1000.0, retry_cap_s=100.0)
    found = await waits(db, queue, settings, made)
    assert 0 <= found[0] < 30 and 70 < found[-1] <= 100
    assert len(set(found)) == len(found)


async def test_without_a_policy_the_settings_say_how_long(
    settings: Settings, db: Database, queue: Queue
) -> None:
    patient = with_worker(settings, retry_base_s=400.0, retry_cap_s=1000.0)
    found = await waits(db, queue, patient, raises(ValueError("?")))
    assert found[0] >= 0 and 200 < found[-1] <= 400


async def test_what_an_error_says_of_its_wait_is_kept_to(
    settings: Settings, db: Database, queue: Queue
) -> None:
    found = await waits(db, queue, settings, raises(RetryLater("busy", after=77)))
    assert found == pytest.approx([77.0] * 40)


async def test_the_api_can_learn_how_often_an_agent_is_tried(
    settings: Settings, db: Database, queue: Queue
) -> None:
    agents = {"five": raises(ValueError(), max_attempts=5), "usual": sleeping()}
    async with working(settings, db, queue, agents):
        assert {a.name: a.max_attempts for a in await known_agents(db)} == {"five": 5, "usual": 3}
    async with working(settings, db, queue, {"five": raises(ValueError(), max_attempts=2)}):
        assert {a.name: a.max_attempts for a in await known_agents(db)} == {"five": 2, "usual": 3}


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"max_attempts": 0}, "max_attempts is 0; give 1 to 100"),
        ({"max_attempts": "3"}, "max_attempts is '3'"),
        ({"retry_base_s": -1.0}, "retry_base_s is -1.0; give seconds"),
        ({"retry_cap_s": 1e9}, "retry_cap_s is 1000000000.0"),
        ({"permanent": [ValueError]}, "give a tuple of exception types"),
        ({"permanent": ("ValueError",)}, "give a tuple of exception types"),
        ({"retry_on": ValueError}, "retry_on is"),
    ],
)
def test_a_policy_that_cannot_work_is_found_at_import(policy: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        raises(ValueError(), **policy)


def test_an_agent_without_a_policy_has_the_usual_one() -> None:
    assert make_agent("it", sleeping()).info.max_attempts == 3


async def test_a_time_out_is_in_the_ledger_with_its_trace(
    settings: Settings, db: Database, queue: Queue
) -> None:
    async with working(settings, db, queue, {"it": sleeping()}):
        run = new_run(agent="it", max_attempts=1, timeout_s=0.1)
        await submit(db, queue, run)
        await ended(db, run.run_id)
    [record] = await read_claims(db, 1, run.run_id)
    assert record.error is not None
    assert (record.outcome, record.error["type"]) == ("failed", "timed_out")
    assert "in sleeps" in record.error["trace"]
    assert record.finished_at is not None
