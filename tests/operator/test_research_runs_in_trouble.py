"""ResearchRun where it hurts: an operator that is killed anywhere, two of it, an API server that
refuses, events that are lost, objects that come again under the same name."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from kmock import KubernetesError
from tests.operator.customs import RUNS, Customs, running_beside
from tests.operator.rude import rude
from tests.operator.scene import Scene
from tests.operator.test_research_runs import phase, runs
from tests.support import Gate, echo, ended, eventually, row

from researchcopilot.core.errors import Unavailable
from researchcopilot.operator.context import Context
from researchcopilot.operator.kube import Kube
from researchcopilot.operator.projection import Projection
from researchcopilot.operator.research_runs import ResearchRuns
from researchcopilot.storage import objects
from researchcopilot.storage.db import Database

pytestmark = pytest.mark.anyio
ECHO = {"input": 1, "agent": "echo"}


class Killed(BaseException):
    """As good as kill -9: nothing after it is done."""


# Each is a place where something was just done, and what comes next is not.
PLACES = ["before the submit", "after the submit", "before the status", "after the status"]


@pytest.mark.parametrize("place", PLACES)
async def test_killed_between_any_two_writes_it_goes_on_where_it_was(
    place: str,
    scene: Scene,
    api: Customs,
    db: Database,
    context: Context,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One run, whenever it was; the next one shows its end."""
    async with scene.working():
        body = await api.kubectl_apply(RUNS, "a", ECHO)
        with monkeypatch.context() as patched:
            kill_at(place, patched)
            dying = Projection(context, ResearchRuns(context))
            dying.note("ADDED", body)
            with pytest.raises(Killed):
                await dying._round()
        async with scene.operating():
            status = await phase(api, "a", "Succeeded")
    assert await runs(db) == [(status["runId"], "succeeded")]


def kill_at(place: str, patched: pytest.MonkeyPatch) -> None:
    where, name = {
        "before the submit": (objects, "submit"),
        "after the submit": (objects, "submit"),
        "before the status": (Kube, "patch"),
        "after the status": (Kube, "patch"),
    }[place]
    real = getattr(where, name)

    async def killed(*args: Any, **fields: Any) -> Any:
        if place.startswith("after"):
            await real(*args, **fields)
        raise Killed

    patched.setattr(where, name, killed)


async def test_killed_between_the_mark_and_the_cancellation(
    scene: Scene, api: Customs, db: Database
) -> None:
    """The object is gone, its row says so, and its run goes on: the next start cancels it."""
    gate = Gate()
    async with scene.working(gate=gate):
        async with scene.operating():
            await api.kubectl_apply(RUNS, "a", {"input": 1, "agent": "gate"})
            found = await phase(api, "a", "Running")
        await api.kubectl_delete(RUNS, "a")
        await objects.gone(db, [found["sessionId"]])  # its own conversation has its uid
        async with scene.operating():
            assert (await ended(db, found["runId"]))["status"] == "cancelled"


async def test_two_operators_make_one_run_and_write_the_same(
    scene: Scene, api: Customs, db: Database, context: Context
) -> None:
    """By accident, at once: no run twice, and no war of statuses."""
    often = scene.but(resync_s=0.1)
    other = Projection(replace(context, settings=often.settings), ResearchRuns(context))
    names = [f"run-{number}" for number in range(8)]
    async with often.at_work(), running_beside(other):
        await asyncio.gather(*(api.kubectl_apply(RUNS, name, ECHO) for name in names))
        for name in names:
            await phase(api, name, "Succeeded")
        await several_lists(api)  # what was under way when the last was shown is through by then
        written = len(api.written)
        await several_lists(api)
        assert len(api.written) == written <= 2 * 3 * len(names)
        await asyncio.gather(*(api.kubectl_delete(RUNS, name) for name in names))
        await eventually(lambda: all_are_gone(db, len(names)))
    assert [status for _, status in await runs(db)] == ["succeeded"] * len(names)


async def several_lists(api: Customs) -> None:
    before = api.lists
    await eventually(lambda: api.lists > before + 8)


async def all_are_gone(db: Database, number: int) -> bool:
    rows = await db.rows(b"SELECT 1 FROM objects WHERE gone_at IS NOT NULL")
    return len(rows) == number


async def test_whoever_hears_of_a_deletion_late_submits_nothing(
    scene: Scene, api: Customs, db: Database, context: Context
) -> None:
    """Of two operators one has seen the object go; the other sees it still."""
    async with scene.working():
        body = await api.kubectl_apply(RUNS, "a", ECHO)
        first, second = (Projection(context, ResearchRuns(context)) for _ in range(2))
        first.note("ADDED", body)
        await first._round()
        first.note("DELETED", body)
        await first._round()
        changed = {**body["metadata"], "generation": 2}
        second.note("ADDED", {**body, "metadata": changed, "spec": {**body["spec"], "input": 2}})
        await second._round()
    assert len(await runs(db)) == 1


@pytest.mark.parametrize("code", [409, 429, 500])
async def test_a_status_that_is_refused_is_written_later(
    code: int, scene: Scene, api: Customs, db: Database
) -> None:
    """And meanwhile the run goes on, and so do the others."""
    async with scene.at_work():
        api.answers.extend([KubernetesError(code, "Trouble", "not now")] * 2)
        await api.kubectl_apply(RUNS, "a", ECHO)
        await eventually(lambda: len(api.answers) == 0)
        await api.kubectl_apply(RUNS, "b", ECHO)
        for name in ("a", "b"):
            await phase(api, name, "Succeeded")
    assert len(await runs(db)) == 2
    assert len(api.written) <= 2 + 6, "it is not asked again and again"


async def test_events_that_are_lost_are_made_up_for_by_the_next_list(
    scene: Scene, api: Customs, db: Database
) -> None:
    """A new object, and one that went, of which nobody was told."""
    often = scene.but(resync_s=0.2)
    gate = Gate()
    async with often.at_work(echo=echo, gate=gate):
        await api.kubectl_apply(RUNS, "a", {"input": 1, "agent": "gate"})
        found = await phase(api, "a", "Running")
        api.lost_events = True
        await api.kubectl_delete(RUNS, "a")
        await api.kubectl_apply(RUNS, "b", ECHO)
        assert (await ended(db, found["runId"]))["status"] == "cancelled"
        await phase(api, "b", "Succeeded")


async def test_an_answer_that_is_no_list_cancels_nothing(
    scene: Scene, api: Customs, db: Database, context: Context
) -> None:
    """Something between us and the API server answers for it: that is not that all are gone."""
    gate = Gate()

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({})

    async with scene.at_work(gate=gate), rude(answer) as server:
        await api.kubectl_apply(RUNS, "a", {"input": 1, "agent": "gate"})
        found = await phase(api, "a", "Running")
        kube = Kube(server.credentials)
        beside = Projection(replace(context, kube=kube), ResearchRuns(context))
        with pytest.raises(Unavailable, match="a list was asked for, and this is none"):
            await beside._resync()
        await kube.close()
        assert (await row(db, found["runId"]))["cancel_requested_at"] is None
        gate.open.set()
        await phase(api, "a", "Succeeded")


async def test_another_object_of_the_same_name_is_another(
    scene: Scene, api: Customs, db: Database
) -> None:
    """Deleted and made again while the operator was down: the old run is cancelled, the new one has
    its own, and its status is never the old one's."""
    gate = Gate()
    async with scene.working(echo=echo, gate=gate):
        async with scene.operating():
            await api.kubectl_apply(RUNS, "a", {"input": 1, "agent": "gate"})
            old = await phase(api, "a", "Running")
        await api.kubectl_delete(RUNS, "a")
        await api.kubectl_apply(RUNS, "a", ECHO)
        async with scene.operating():
            new = await phase(api, "a", "Succeeded")
            assert (await ended(db, old["runId"]))["status"] == "cancelled"
    assert new["runId"] != old["runId"]


async def test_a_status_is_never_written_into_another_object_of_its_name(
    scene: Scene, api: Customs, context: Context
) -> None:
    """An operator that has not heard yet that the one it knows was deleted and made again."""
    late = Projection(context, ResearchRuns(context))
    async with scene.working():
        late.note("ADDED", await api.kubectl_apply(RUNS, "a", ECHO))
        await api.kubectl_delete(RUNS, "a")
        await api.kubectl_apply(RUNS, "a", {"input": 2, "agent": "echo"})
        await late._round()
    assert [name for name, _ in api.written] == ["a"], "it was tried"
    assert api.status("a") == {}


async def test_an_object_that_was_changed_meanwhile_is_not_deleted(
    scene: Scene, api: Customs, context: Context
) -> None:
    """Its time was over, and a person has given it more, of which this operator has not heard."""
    async with scene.at_work():
        await api.kubectl_apply(RUNS, "a", ECHO)
        await phase(api, "a", "Succeeded")
    short = await api.kubectl_apply(RUNS, "a", {**ECHO, "ttlSecondsAfterFinished": 0})
    stored = api.find(RUNS, "a")
    assert stored is not None
    await api.kubectl_apply(RUNS, "a", {**ECHO, "ttlSecondsAfterFinished": 3600})
    late = Projection(context, ResearchRuns(context))
    seen_by_all = {**stored["status"], "observedGeneration": short["metadata"]["generation"]}
    late.note("MODIFIED", {**stored, "status": seen_by_all})
    await late._round()
    await late._round()
    assert api.find(RUNS, "a") is not None


async def test_a_run_that_retention_removed_is_not_made_again(
    scene: Scene, api: Customs, db: Database
) -> None:
    """What the object shows of its end stays, also if its status was lost on the way."""
    async with scene.working():
        async with scene.operating():
            await api.kubectl_apply(RUNS, "a", ECHO)
            shown = await phase(api, "a", "Succeeded")
            await api.kubectl_apply(RUNS, "b", ECHO)
            await phase(api, "b", "Succeeded")
        for table in (b"messages", b"claims", b"runs"):
            await db.execute(b"DELETE FROM " + table)
        lost = api.find(RUNS, "b")
        assert lost is not None
        await api._store(RUNS, {**lost, "status": {}})
        async with scene.operating():
            await phase(api, "b", "Failed")
    assert "removed by retention" in api.status("b")["message"]
    assert api.status("a") == shown
    assert await runs(db) == []


async def test_an_api_server_that_is_away_loses_nothing(
    scene: Scene, api: Customs, db: Database
) -> None:
    """Runs go on without it; their ends are shown when it is back."""
    gate = Gate()
    async with scene.at_work(gate=gate) as operator:
        await api.kubectl_apply(RUNS, "a", {"input": 1, "agent": "gate"})
        found = await phase(api, "a", "Running")
        api.refuse = KubernetesError(503, "ServiceUnavailable", "away")
        await api.cut()
        gate.open.set()
        await ended(db, found["runId"])
        api.refuse = None
        await phase(api, "a", "Succeeded")
        assert not operator.task.done()


async def test_a_list_that_is_refused_is_asked_for_ever_more_rarely(
    db: Database, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that goes well in between, as each does, must not make it impatient again."""
    waiting = Projection(context, ResearchRuns(context))
    pauses: list[float] = []
    enough = asyncio.Event()

    async def refused() -> float:
        raise Unavailable("away")

    def note(step: str) -> float:
        pauses.append(backoff(step))
        if len(pauses) == 4:
            enough.set()
        return pauses[-1]

    backoff = waiting._backoff
    monkeypatch.setattr(waiting, "_resync", refused)
    monkeypatch.setattr(waiting, "_backoff", note)
    monkeypatch.setattr(waiting._alarm, "sleep", lambda _: asyncio.sleep(0))
    rounds = asyncio.create_task(waiting._rounds())
    await asyncio.wait_for(enough.wait(), 10)
    rounds.cancel()
    assert pauses[:4] == [0.2, 0.4, 0.8, 1.6]
