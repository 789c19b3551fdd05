"""ResearchRun: apply submits, the status shows, deletion cancels; a real worker executes, over a
real Postgres, a real Valkey, and an API server that is emulated over real HTTP."""

from functools import partial
from typing import Any

import pytest
from tests.operator.customs import RUNS, Customs
from tests.operator.scene import Scene
from tests.operator.stage import statuses
from tests.support import (
    Gate,
    echo,
    ended,
    eventually,
    metric,
    returns,
    row,
    running,
    submit_one,
)

from researchcopilot.agents.contract import Context
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


async def phase(cluster: Customs, name: str, *wanted: str) -> dict[str, Any]:
    """The status once it is in one of these phases."""

    def look() -> dict[str, Any] | None:
        status = cluster.status(name)
        return status if status.get("phase") in wanted else None

    found: dict[str, Any] = await eventually(look)
    return found


async def runs(db: Database) -> list[tuple[str, str]]:
    """(run_id, status) of all, oldest first."""
    found = await db.rows(b"SELECT run_id, status FROM runs ORDER BY seq")
    return [(run_id, status) for run_id, status in found]


async def test_what_is_applied_is_executed_and_shown(
    scene: Scene, api: Customs, db: Database
) -> None:
    """The whole way, and few writes: one a phase. It counts as accepted, as over HTTP."""
    accepted = metric("researchcopilot_runs_submitted_total", queue="runs")
    answer = {"answer": "Because.\n\x1b[31mIt\u202e is.", "citations": []}
    async with scene.at_work(research=returns(answer)):
        made = await api.kubectl_apply(RUNS, "why", {"input": "why?", "metadata": {"a": "b"}})
        status = await phase(api, "why", "Succeeded")
    run = await row(db, status["runId"])
    assert run["input"] == "why?" and run["metadata"] == {"a": "b"}
    assert status["observedGeneration"] == 1
    assert status["answer"] == "Because. [31mIt is.", "one line, and nothing that moves a cursor"
    assert status["worker"] == "tests" and status["attempt"] == 1
    assert status["sessionId"] == made["metadata"]["uid"]
    assert api.conditions("why") == {"Succeeded": "True", "Ready": "True"}
    assert all(one["observedGeneration"] == 1 for one in status["conditions"])
    assert len(api.written) <= 3
    assert metric("researchcopilot_runs_submitted_total", queue="runs") == accepted + 1
    stored = api.find(RUNS, "why")
    assert stored is not None
    assert not {"annotations", "finalizers"} & stored["metadata"].keys()


async def test_applying_twice_is_applying_once(scene: Scene, api: Customs, db: Database) -> None:
    """The same again, events that come twice and late: one run."""
    async with scene.operating():
        first = await api.kubectl_apply(RUNS, "a", {"input": "why?", "agent": "echo"})
        await phase(api, "a", "Pending")  # no worker has registered yet
        async with scene.working():
            await phase(api, "a", "Succeeded")
            await api.kubectl_apply(RUNS, "a", {"input": "why?", "agent": "echo"})
            for _ in range(3):
                await api.tell(RUNS, "MODIFIED", {**first, "status": {}})
            other = await api.kubectl_apply(RUNS, "b", {"input": "how?", "agent": "echo"})
            await phase(api, "b", "Succeeded")
    assert other["metadata"]["uid"] != first["metadata"]["uid"]
    assert len(await runs(db)) == 2


async def test_a_change_of_what_is_asked_is_a_new_run(
    scene: Scene, api: Customs, db: Database
) -> None:
    """The run before is cancelled, the new one is the next turn; its status starts anew. A change
    of how the object is kept asks for nothing."""
    gate = Gate()
    async with scene.at_work(echo=echo, gate=gate):
        await api.kubectl_apply(RUNS, "a", {"input": 1, "agent": "gate"})
        before = await phase(api, "a", "Running")
        await api.kubectl_apply(RUNS, "a", {"input": 2, "agent": "echo"})
        await eventually(lambda: api.status("a").get("observedGeneration") == 2)
        after = await phase(api, "a", "Succeeded")
        assert after["runId"] != before["runId"]
        assert after["sessionId"] == before["sessionId"]
        assert (await row(db, before["runId"]))["status"] == "cancelled"
        keep = {"input": 2, "agent": "echo", "ttlSecondsAfterFinished": 3600}
        await api.kubectl_apply(RUNS, "a", keep)
        await eventually(lambda: api.status("a").get("observedGeneration") == 3)
    assert api.status("a")["runId"] == after["runId"]
    assert [status for _, status in await runs(db)] == ["cancelled", "succeeded"]


async def test_deleting_it_cancels_its_run(scene: Scene, api: Customs, db: Database) -> None:
    gate = Gate()
    async with scene.at_work(gate=gate):
        await api.kubectl_apply(RUNS, "a", {"input": 1, "agent": "gate"})
        found = await phase(api, "a", "Running")
        await api.kubectl_delete(RUNS, "a")
        assert (await ended(db, found["runId"]))["status"] == "cancelled"


async def test_what_was_deleted_while_the_operator_was_down_is_cancelled_at_its_start(
    scene: Scene, api: Customs, db: Database, queue: Queue
) -> None:
    """And nothing else is: neither a run of the api, nor one whose object is there."""
    gate = Gate()
    async with scene.working(gate=gate):
        async with scene.operating():
            for name in ("a", "b"):
                await api.kubectl_apply(RUNS, name, {"input": 1, "agent": "gate"})
            gone, kept = [(await phase(api, name, "Running"))["runId"] for name in ("a", "b")]
        of_the_api = await submit_one(db, queue, "gate")
        await running(db, of_the_api)
        await api.kubectl_delete(RUNS, "a")
        assert (await row(db, gone))["cancel_requested_at"] is None
        async with scene.operating():
            assert (await ended(db, gone))["status"] == "cancelled"
            assert await statuses(db, [kept, of_the_api]) == ["running", "running"]
            gate.open.set()
            await phase(api, "b", "Succeeded")


async def test_it_is_deleted_when_its_time_after_its_end_is_over(
    scene: Scene, api: Customs, db: Database
) -> None:
    """Its end was shown before; the run stays. One without a time stays."""
    async with scene.at_work():
        await api.kubectl_apply(RUNS, "stays", {"input": 1, "agent": "echo"})
        spec = {"input": 1, "agent": "echo", "ttlSecondsAfterFinished": 1}
        await api.kubectl_apply(RUNS, "goes", spec)
        refused = {"input": 1, "agent": "nobody", "ttlSecondsAfterFinished": 0}
        await api.kubectl_apply(RUNS, "refused", refused)
        await phase(api, "stays", "Succeeded")
        for name in ("goes", "refused"):
            await eventually(partial(is_gone, api, name))
    shown = [patch["phase"] for name, patch in api.written if name == "goes"]
    assert shown[-1] == "Succeeded"
    assert api.find(RUNS, "stays") is not None
    assert [status for _, status in await runs(db)] == ["succeeded", "succeeded"]


def is_gone(api: Customs, name: str) -> bool:
    return api.find(RUNS, name) is None


async def failing(ctx: Context, given: Any) -> Any:
    raise ValueError("no such customer 17")


async def test_what_fails_or_is_refused_says_why(
    scene: Scene, api: Customs, db: Database, queue: Queue
) -> None:
    """Refused by the api's own words, with the names of the object; and stalled for who waits."""
    cases = {
        "unknown-agent": ({"agent": "nobody"}, "UnknownAgent", "spec.agent names the agent 'nob"),
        "unknown-queue": ({"queue": "none"}, "UnknownQueue", "spec.queue names the queue 'none'"),
        "too-long": ({"input": "ü" * 200_000}, "TooLarge", "spec.input must have at most 262144"),
        "too-deep": ({"input": nested(40)}, "TooDeep", "spec.input is nested deeper than 32"),
        "too-late": ({"deadline": "2020-01-01T00:00:00Z"}, "Invalid", "spec.deadline must be in"),
        "blank": ({"input": " "}, "Empty", "spec.input must not be empty"),
        "fails": ({"maxAttempts": 1}, "Failed", "ValueError: no such customer 17"),
    }
    async with scene.at_work(failing=failing):
        for name, (spec, _, _) in cases.items():
            await api.kubectl_apply(RUNS, name, {"input": "why?", "agent": "failing", **spec})
        for name, (_, reason, words) in cases.items():
            status = await phase(api, name, "Failed")
            assert words in status["message"], name
            assert {one["reason"] for one in status["conditions"]} == {reason}
            wanted = {"Succeeded": "False", "Ready": "False", "Stalled": "True"}
            assert api.conditions(name) == wanted
    assert len(await runs(db)) == 1


def nested(levels: int) -> Any:
    return [nested(levels - 1)] if levels else "why?"


async def test_a_namespace_has_no_more_than_its_quota(scene: Scene, api: Customs) -> None:
    """However many come at once; who is refused is told, and what has ended does not count."""
    few = scene.but(runs_per_namespace=2)
    gate = Gate()
    names = [f"run-{number}" for number in range(5)]
    async with few.at_work(gate=gate):
        for name in names:
            await api.kubectl_apply(RUNS, name, {"input": 1, "agent": "gate"})
        found = [await phase(api, name, "Running", "Failed") for name in names]
        assert sorted(status["phase"] for status in found) == ["Failed"] * 3 + ["Running"] * 2
        [words, *_] = [status["message"] for status in found if status["phase"] == "Failed"]
        assert "at most 2" in words and "RC_OPERATOR_RUNS_PER_NAMESPACE" in words
        gate.open.set()
        for name in names:
            await phase(api, name, "Succeeded", "Failed")
        await api.kubectl_apply(RUNS, "one-more", {"input": 1, "agent": "gate"})
        await phase(api, "one-more", "Succeeded")
