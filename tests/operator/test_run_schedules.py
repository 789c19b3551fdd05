"""RunSchedule: the row follows its object, whatever happens to either."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.operator.cluster import Json
from tests.operator.customs import SCHEDULES, Customs, running_beside
from tests.operator.scene import Scene
from tests.support import eventually

from researchcopilot.core.cron import parse
from researchcopilot.core.errors import BadInput
from researchcopilot.core.schedules import Schedule
from researchcopilot.operator.context import Context
from researchcopilot.operator.projection import Projection
from researchcopilot.operator.run_schedules import RunSchedules
from researchcopilot.runtime.loop import Stop
from researchcopilot.scheduler.ticks import TickLoop
from researchcopilot.storage import objects, schedules
from researchcopilot.storage.db import Database
from researchcopilot.storage.lock import Locks
from researchcopilot.storage.push import Pusher
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio
SPEC = {"input": 1, "agent": "echo", "cron": "0 8 * * *"}


async def rows(db: Database) -> dict[str, Schedule]:
    listed = await schedules.list_schedules(db, 1, after=None, limit=100)
    found = [await schedules.get(db, 1, one.schedule_id) for one in listed]
    return {one.name: one for one in found if one is not None}


async def made(db: Database, name: str = "research/a") -> Schedule | None:
    return (await rows(db)).get(name)


def reason(api: Customs, name: str = "a") -> tuple[str, str, str]:
    """(Ready, its reason, its message)."""
    for one in api.status(name, SCHEDULES).get("conditions", ()):
        if one["type"] == "Ready":
            return one["status"], one["reason"], one["message"]
    return "", "", ""


async def ready(api: Customs, *wanted: str, name: str = "a") -> Json:
    await eventually(lambda: reason(api, name)[1] in wanted)
    return api.status(name, SCHEDULES)


async def test_it_is_made_changed_and_deleted_with_its_object(
    scene: Scene, api: Customs, db: Database
) -> None:
    async with scene.at_work():
        body = await api.kubectl_apply(SCHEDULES, "a", SPEC)
        status = await ready(api, "Scheduled")
        row = await made(db)
        assert row is not None and row.next_tick is not None
        assert row.schedule_id == body["metadata"]["uid"] == status["scheduleId"]
        assert status["nextTickAt"] == row.next_tick.strftime("%Y-%m-%dT08:00:00Z")
        assert api.conditions("a", SCHEDULES) == {"Ready": "True"}

        await api.kubectl_apply(SCHEDULES, "a", {**SPEC, "cron": "0 9 * * *"})
        await eventually(lambda: api.status("a", SCHEDULES)["observedGeneration"] == 2)
        assert api.status("a", SCHEDULES)["nextTickAt"].endswith("T09:00:00Z")

        more = {"timeZone": "Asia/Shanghai", "input": 2, "suspend": True}
        await api.kubectl_apply(SCHEDULES, "a", {**SPEC, **more})
        status = await ready(api, "Suspended")
        row = await made(db)
        assert row is not None and row.paused_at is not None and row.input == 2
        assert row.timezone == "Asia/Shanghai"
        assert status["observedGeneration"] == 3 and "nextTickAt" not in status

        await api.kubectl_apply(SCHEDULES, "a", {**SPEC, **more, "suspend": False})
        status = await ready(api, "Scheduled")
        assert status["nextTickAt"].endswith("T00:00:00Z"), "eight in Shanghai"
        await api.kubectl_delete(SCHEDULES, "a")
        await eventually(lambda: is_gone(db))


async def is_gone(db: Database) -> bool:
    return await made(db) is None


async def test_it_fires_and_shows_its_last_run(
    scene: Scene, api: Customs, db: Database, queue: Queue
) -> None:
    """With the real scheduler and a real worker; its status is not written for each tick."""
    locks, pusher, stop = Locks(scene.settings.redis, db), Pusher(queue), Stop()
    ticks = TickLoop(db, locks, pusher, stop)
    async with scene.at_work():
        await api.kubectl_apply(
            SCHEDULES, "a", {"input": 1, "agent": "echo", "intervalSeconds": 3600}
        )
        await ready(api, "Scheduled")
        await db.execute(b"UPDATE schedules SET next_tick = clock_timestamp()")
        await ticks._round()
        await eventually(lambda: api.status("a", SCHEDULES).get("lastRunPhase") == "Succeeded")
    status = api.status("a", SCHEDULES)
    assert status["lastRunId"] and status["lastTickAt"] and status["nextTickAt"]
    await pusher.close()
    await locks.close()


async def test_what_was_changed_elsewhere_is_put_right(
    scene: Scene, api: Customs, db: Database
) -> None:
    """Also a row that somebody has removed, and one that was paused by hand."""
    async with scene.at_work():
        await api.kubectl_apply(SCHEDULES, "a", SPEC)
        await ready(api, "Scheduled")
        before = await made(db)
        assert before is not None
        await db.execute(b"UPDATE schedules SET cron = '0 9 * * *', input = '7', name = 'other'")
        await eventually(lambda: is_again(db, before))
        await schedules.change(db, 1, before.schedule_id, schedules.paused)
        await eventually(lambda: is_again(db, before))
        await db.execute(b"DELETE FROM schedules")
        await eventually(lambda: is_again(db, before))


async def is_again(db: Database, before: Schedule) -> bool:
    found = await made(db)
    if found is None:
        return False
    same = ("schedule_id", "cron", "next_tick", "paused_at")
    return all(getattr(found, name) == getattr(before, name) for name in same)


async def test_what_the_scheduler_has_halted_is_left_to_a_person(
    scene: Scene, api: Customs, db: Database
) -> None:
    """To set it going again would only have it fail again; a change gives it another try."""
    async with scene.at_work():
        await api.kubectl_apply(SCHEDULES, "a", SPEC)
        await ready(api, "Scheduled")
        row = await made(db)
        assert row is not None
        await schedules.halt(db, row, "it cannot be fired: a test")
        await ready(api, "Halted")
        assert "it cannot be fired: a test" in reason(api)[2]
        assert api.conditions("a", SCHEDULES) == {"Ready": "False", "Stalled": "True"}
        await api.kubectl_apply(SCHEDULES, "a", {**SPEC, "input": 2})
        await ready(api, "Scheduled")


def refusal(cron: str, zone: str = "UTC") -> str:
    with pytest.raises(BadInput) as found:
        parse(cron, zone)
    return found.value.message


BAD = {
    "never": ({"cron": "0 0 30 2 *"}, f"spec.cron {refusal('0 0 30 2 *')}"),
    "no-cron": ({"cron": "every day"}, f"spec.cron {refusal('every day')}"),
    "no-zone": ({"timeZone": "Mars/Olympus"}, refusal("* * * * *", "Mars/Olympus")),
    "past": ({"endsAt": "2020-01-01T00:00:00Z"}, "spec.endsAt is past"),
    "no-agent": ({"agent": "nobody"}, "spec.agent names the agent 'nobody'"),
}


async def test_what_would_never_fire_says_so_in_the_words_of_the_api(
    scene: Scene, api: Customs, db: Database
) -> None:
    """Ready is False with the reason, and no row is made."""
    async with scene.at_work():
        for name, (spec, _) in BAD.items():
            await api.kubectl_apply(SCHEDULES, name, {**SPEC, **spec})
        for name, (_, words) in BAD.items():
            await eventually(partial(reason_is_told, api, name))
            value, _, message = reason(api, name)
            assert (value, words in message) == ("False", True), message
        assert "Stalled" in api.conditions("never", SCHEDULES)
        assert "Stalled" not in api.conditions("no-agent", SCHEDULES), "its worker may yet come"
    assert await rows(db) == {}


def reason_is_told(api: Customs, name: str) -> bool:
    return reason(api, name)[0] != ""


async def test_a_bad_change_leaves_what_was_good(scene: Scene, api: Customs, db: Database) -> None:
    async with scene.at_work():
        await api.kubectl_apply(SCHEDULES, "a", SPEC)
        await ready(api, "Scheduled")
        before = await made(db)
        await api.kubectl_apply(SCHEDULES, "a", {**SPEC, "cron": "0 0 30 2 *"})
        await eventually(lambda: reason(api)[0] == "False")
        assert "What was asked for before goes on." in reason(api)[2]
        assert await made(db) == before
        await api.kubectl_apply(SCHEDULES, "a", SPEC)
        await ready(api, "Scheduled")


async def test_what_happened_while_the_operator_was_down_is_made_up_for(
    scene: Scene, api: Customs, db: Database
) -> None:
    """One deleted, one changed, one new; one of the api is nobody's object and stays."""
    async with scene.working():
        async with scene.operating():
            for name in ("gone", "changed"):
                await api.kubectl_apply(SCHEDULES, name, SPEC)
                await ready(api, "Scheduled", name=name)
        fields: dict[str, Any] = {"agent": "echo", "input": 1, "cron": "0 8 * * *"}
        of_the_api = Schedule(
            "01890a5d-ac96-774b-bcce-b302099a8057", 1, "of the api", **fields,
            session_id="01890a5d-ac96-774b-bcce-b302099a8058",
        )  # fmt: skip
        await schedules.create(db, of_the_api)
        await api.kubectl_delete(SCHEDULES, "gone")
        await api.kubectl_apply(SCHEDULES, "changed", {**SPEC, "input": 2})
        await api.kubectl_apply(SCHEDULES, "new", SPEC)
        async with scene.operating():
            await ready(api, "Scheduled", name="new")
            await eventually(lambda: api.status("changed", SCHEDULES)["observedGeneration"] == 2)
            found = await rows(db)
    assert found.keys() == {"research/changed", "research/new", "of the api"}
    assert found["research/changed"].input == 2


async def test_one_that_is_made_again_has_the_name_of_the_one_before(
    scene: Scene, api: Customs, db: Database
) -> None:
    """Nobody told of the deletion, and the next list is far: it must not be found stalled because
    its name is taken by itself."""
    async with scene.at_work():
        await api.kubectl_apply(SCHEDULES, "a", SPEC)
        old = await ready(api, "Scheduled")
        api.lost_events = True
        await api.kubectl_delete(SCHEDULES, "a")
        api.lost_events = False
        await api.kubectl_apply(SCHEDULES, "a", {**SPEC, "input": 2})
        new = await ready(api, "Scheduled", "Invalid", "Conflict", "NameTaken")
        found = await rows(db)
    assert reason(api)[1] == "Scheduled", reason(api)
    assert new["scheduleId"] != old["scheduleId"]
    assert [(one.schedule_id, one.input) for one in found.values()] == [(new["scheduleId"], 2)]


async def test_what_goes_while_another_is_buried_is_buried_before_one_of_its_name_is_made(
    api: Customs, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion is heard of, and then its successor, while the rows of another are dealt with."""
    projection = Projection(context, RunSchedules(context))
    for name in ("a", "b"):
        projection.note("ADDED", await api.kubectl_apply(SCHEDULES, name, SPEC))
    first, second = (api.find(SCHEDULES, name) for name in ("a", "b"))
    assert first is not None and second is not None
    buried: list[str] = []
    gone = objects.gone

    async def heard(db: Database, uids: Sequence[str]) -> int:
        if not buried:
            projection.note("DELETED", second)
        buried.extend(uids)
        return await gone(db, uids)

    monkeypatch.setattr(objects, "gone", heard)
    projection.note("DELETED", first)
    await projection._bury()
    assert buried == [first["metadata"]["uid"], second["metadata"]["uid"]]


async def test_two_operators_do_not_fight(
    scene: Scene, api: Customs, db: Database, context: Context
) -> None:
    """One row, and once it stands nobody writes any more, however often they look."""
    often = scene.but(resync_s=0.1)
    other = Projection(replace(context, settings=often.settings), RunSchedules(context))
    names = ("a", "b", "c")
    async with often.at_work(), running_beside(other):
        for name in names:
            await api.kubectl_apply(SCHEDULES, name, SPEC)
        for name in names:
            await ready(api, "Scheduled", name=name)
        settled = {name: one.revision for name, one in (await rows(db)).items()}
        written, lists = len(api.written), api.lists
        await eventually(lambda: api.lists > lists + 12)
        assert {name: one.revision for name, one in (await rows(db)).items()} == settled
        assert len(api.written) <= written + len(names)
    assert len(settled) == len(names)
