"""An API server that goes away, falls silent or answers errors: ridden out, and told by /livez."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from kmock import KubernetesError
from kopf._cogs.aiokits import aiotasks
from multidict import CIMultiDict
from tests.operator.cluster import PODS, Served
from tests.operator.rude import listed, rude
from tests.operator.stage import (
    in_cluster,
    operating,
    queued_again,
    with_operator,
)
from tests.support import eventually, metric
from yarl import URL

from researchcopilot.core.settings import Settings
from researchcopilot.operator import watching
from researchcopilot.operator.watches import LATELY_S, MOST_PAUSE_S, Pace, Watches, asked
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


async def test_a_lost_api_server_is_waited_for(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    """What happened meanwhile is told when it is back, and /livez has failed in between."""
    quick = with_operator(settings, watch_limit_s=1.0)
    async with operating(quick, db, queue, served) as operator:
        health = operator.service.health
        _, worker = await in_cluster(served.cluster, db, queue)
        await served.close()
        await eventually(lambda: health.answer("/livez")[0] == 503)
        assert b"no watch of pods was answered for" in health.answer("/livez")[2]
        await served.cluster.remove(PODS, "a")
        await served.open()
        await eventually(lambda: queued_again(db, worker))
        await eventually(lambda: health.answer("/livez")[0] == 200)


async def test_a_watch_that_has_died_unseen_is_given_up(
    settings: Settings, db: Database, queue: Queue, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is open and says nothing (a load balancer has forgotten it): after a while
    it is asked anew, from where it was."""
    monkeypatch.setattr(watching, "WATCH_LASTS_S", 1)
    monkeypatch.setattr(watching, "SILENT_S", 1.5)
    async with operating(with_operator(settings), db, queue, served):
        _, worker = await in_cluster(served.cluster, db, queue)
        served.cluster.stalled = True
        watches = len(watches_of(served))
        await eventually(lambda: len(watches_of(served)) > watches)
        await served.cluster.remove(PODS, "a")
        served.cluster.stalled = False
        await eventually(lambda: queued_again(db, worker))


def watches_of(served: Served) -> list[Any]:
    return [r for r in served.cluster.asked if r.resource == PODS and "watch" in r.params]


async def test_each_watch_is_asked_to_end_so_that_silence_can_be_told(
    settings: Settings, db: Database, queue: Queue, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute without news is no minute without an answer; and going on asks for no list."""
    monkeypatch.setattr(watching, "WATCH_LASTS_S", 1)
    async with operating(with_operator(settings, watch_limit_s=2.0), db, queue, served) as operator:
        await eventually(lambda: len(watches_of(served)) >= 3)
        await eventually(lambda: operator.service.health.answer("/livez")[0] == 200)
    assert all(r.params["timeoutSeconds"] == "1" for r in watches_of(served))
    lists = [r for r in served.cluster.asked if r.resource == PODS and "watch" not in r.params]
    assert len(lists) == 1


async def test_an_error_that_kopf_gives_up_at_ends_nothing(
    settings: Settings,
    db: Database,
    queue: Queue,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rights that are missing for a while (nolar/kopf#1077): kopf ends, we do not."""

    def impatient(*selectors: dict[str, str]) -> object:
        settings = kopf_settings(*selectors)
        settings.networking.error_backoffs = [0.05]
        return settings

    kopf_settings = watching.kopf_settings
    monkeypatch.setattr("researchcopilot.operator.main.kopf_settings", impatient)
    before = metric("researchcopilot_operator_restarts_total")
    async with operating(with_operator(settings), db, queue, served) as operator:
        _, worker = await in_cluster(served.cluster, db, queue)
        served.cluster.refuse = KubernetesError(status=403, message="no rights")
        await served.cluster.cut()
        await eventually(lambda: metric("researchcopilot_operator_restarts_total") > before)
        assert not operator.task.done()
        served.cluster.refuse = None
        await eventually(lambda: served.cluster.watchers > 0)
        await served.cluster.remove(PODS, "a")
        await eventually(lambda: queued_again(db, worker))


async def test_postgres_away_makes_signals_wait(
    settings: Settings,
    db: Database,
    queue: Queue,
    served: Served,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They are kept, one of a kind, and go when it answers again."""
    theirs = Database(replace(settings.database, statement_timeout_s=1.0))
    await theirs.open()
    async with operating(with_operator(settings), theirs, queue, served):
        _, worker = await in_cluster(served.cluster, db, queue, runs=2)
        async with db.transaction() as connection:
            await connection.execute(b"LOCK TABLE workers IN ACCESS EXCLUSIVE MODE")
            await served.cluster.remove(PODS, "a")
            await eventually(lambda: "1 signals wait for a server" in caplog.text)
        await eventually(lambda: queued_again(db, worker))
    await theirs.close()


async def test_a_watch_that_ends_at_once_is_asked_for_ever_more_rarely(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """A proxy that takes no streams. kopf by itself asks thousands of times a second."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="") if "watch" in request.query else listed()

    async with (
        rude(answer) as server,
        operating(with_operator(settings), db, queue, server, wait=False),
    ):
        await eventually(lambda: len(server.watched("pods")) > 4, 20)
        begun = server.watched("pods")
    gaps = [after - before for before, after in pairwise(begun)]
    assert all(gap > least for gap, least in zip(gaps, (0.2, 0.4, 0.9, 1.9), strict=False)), gaps


async def test_who_was_held_back_finds_a_closed_session_as_kopf_expects_it() -> None:
    """Its token was refused meanwhile: an error that kopf tries again at, with another session."""
    session = aiohttp.ClientSession()
    await session.close()
    starts = aiohttp.TraceRequestStartParams("GET", URL("http://a/api/v1/pods"), CIMultiDict())
    with pytest.raises(aiohttp.ClientConnectionError, match="session is closed"):
        await Watches("pods")._starts(session, SimpleNamespace(), starts)


async def test_pages_that_are_no_answers_leave_it_neither_ready_nor_alive(
    settings: Settings, db: Database, queue: Queue
) -> None:
    """A proxy that shows its login, with a status of 200: the operator hears nothing."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="<html>", content_type="text/html")

    quick = with_operator(settings, watch_limit_s=1.0)
    async with rude(answer) as server, operating(quick, db, queue, server, wait=False) as operator:
        health = operator.service.health
        before = len(server.asked)
        await eventually(lambda: len(server.asked) > before + 1)
        await eventually(lambda: health.answer("/livez")[0] == 503)
        assert health.answer("/readyz")[0] == 503
        assert not operator.task.done()


def test_who_asks_the_same_too_soon_waits_longer_each_time_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A watch that lasts is begun anew at once, and so is another kind's."""
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    pace, pods = Pace(), ("/api/v1/pods", True)
    waits = []
    for _ in range(9):
        waits.append(pace.wait_s(pods))
        now += waits[-1]
    assert waits == [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, MOST_PAUSE_S, MOST_PAUSE_S, MOST_PAUSE_S]
    assert pace.wait_s(("/api/v1/pods", False)) == 0.0
    now += LATELY_S
    assert pace.wait_s(pods) == 0.0


def test_only_lists_and_watches_of_a_kind_count() -> None:
    base = "https://kubernetes.default.svc"
    for path, kind in (
        ("/api/v1/namespaces/research/pods?watch=true", "pods"),
        ("/api/v1/pods", "pods"),
        ("/apis/researchcopilot.dev/v1alpha1/namespaces/a/researchruns", "researchruns"),
        ("/apis/researchcopilot.dev/v1alpha1/researchruns", "researchruns"),
        ("/apis/researchcopilot.dev/v1alpha1", None),
        ("/api/v1", None),
        ("/api/v1/namespaces/research/pods/a", None),
    ):
        assert asked(URL(base + path)) == kind


def test_the_oldest_watch_is_the_one_that_is_told() -> None:
    watches = Watches("pods", "researchruns")
    assert watches.stale(60) is None
    watches._answered["researchruns"] -= 100
    assert "researchruns" in (watches.stale(60) or "")


async def test_kopf_ends_its_own_tasks_and_none_of_ours() -> None:
    """At its end it cancels all that it does not know: also what we have started since."""
    ours = watching.NotKopfs()
    mine = asyncio.ensure_future(asyncio.sleep(60))
    kopfs = asyncio.ensure_future(aiotasks.all_tasks())
    waiter = asyncio.create_task(asyncio.sleep(60), name=watching.WAITER)
    assert mine in ours
    assert waiter in ours
    assert kopfs not in ours
    assert {mine, waiter} <= set(ours)
    await kopfs
    for task in (mine, waiter):
        task.cancel()
