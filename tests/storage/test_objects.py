"""What belongs to an object of a cluster: made once for each generation, whoever asks and how
often; gone when the object is."""

import asyncio
from typing import Any

import pytest
from tests.storage.verbs import open_connections
from tests.support import claim, new_run, row, submit

from researchcopilot.core.errors import Conflict, NotFound
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import NewRun
from researchcopilot.storage import objects
from researchcopilot.storage.db import Database
from researchcopilot.storage.objects import Owner, Placed
from researchcopilot.storage.push import Pusher
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.schedules import database_time

pytestmark = pytest.mark.anyio


def an_object(namespace: str = "research", cluster: str = "default") -> Owner:
    uid = new_id()
    return Owner(uid, "ResearchRun", cluster, namespace, uid, 1)


async def place(
    db: Database,
    queue: Queue,
    owner: Owner,
    run: NewRun | None = None,
    *,
    generation: int = 1,
    quota: int = 100,
    asked: str = "a",
) -> Placed:
    pusher = Pusher(queue)
    try:
        return await objects.submit(
            db, pusher, owner, run or new_run(), generation=generation, asked=asked, quota=quota
        )
    finally:
        await pusher.close()


async def number_of_runs(db: Database) -> int:
    [(number,)] = await db.rows(b"SELECT count(*) FROM runs")
    return int(number)


async def test_a_generation_has_one_run_for_ever(db: Database, queue: Queue) -> None:
    """Sent again with another run's id, as by another operator; also when keys are long forgotten
    and the run itself was removed. It is pushed once."""
    owner = an_object()
    first = await place(db, queue, owner)
    assert first.verdict == "created"
    again = await place(db, queue, owner)
    assert again == Placed("known", first.run_id)
    assert (await queue.depths("runs")).waiting == 1
    for table in (b"messages", b"runs", b"idempotency_keys"):
        await db.execute(b"DELETE FROM " + table)
    assert await place(db, queue, owner) == Placed("known", first.run_id)
    assert await number_of_runs(db) == 0


async def test_asked_from_many_sides_at_once_it_is_made_once(db: Database, queue: Queue) -> None:
    owner = an_object()
    await open_connections(db, 8)
    found = await asyncio.gather(*(place(db, queue, owner) for _ in range(8)))
    assert sorted(one.verdict for one in found) == ["created", *["known"] * 7]
    assert len({one.run_id for one in found}) == 1
    assert await number_of_runs(db) == 1


async def test_an_older_generation_makes_nothing(db: Database, queue: Queue) -> None:
    """Somebody who has not heard of the newest yet."""
    owner = an_object()
    newest = await place(db, queue, owner, generation=3)
    assert await place(db, queue, owner, generation=2) == Placed("known", newest.run_id)


async def test_a_quota_holds_when_many_come_at_once(db: Database, queue: Queue) -> None:
    """Counted by namespace and cluster; what has ended does not count, nor does the run before of
    the object itself."""
    await open_connections(db, 8)
    crowd = [an_object() for _ in range(8)]
    found = await asyncio.gather(*(place(db, queue, one, quota=3) for one in crowd))
    assert sorted(one.verdict for one in found) == ["created"] * 3 + ["quota"] * 5
    assert {one.held for one in found if one.verdict == "quota"} == {3}
    for elsewhere in (an_object("other"), an_object(cluster="east")):
        assert (await place(db, queue, elsewhere, quota=3)).verdict == "created"
    inside = crowd[[one.verdict for one in found].index("created")]
    assert (await place(db, queue, inside, generation=2, quota=3)).verdict == "created"
    late = an_object()
    assert (await place(db, queue, late, quota=3)).verdict == "quota"
    await objects.gone(db, [inside.uid])
    assert (await place(db, queue, late, quota=3)).verdict == "created"


async def test_an_object_that_is_gone_makes_nothing(db: Database, queue: Queue) -> None:
    """Whoever hears of it late. It is remembered for a day."""
    owner = an_object()
    await place(db, queue, owner)
    assert await objects.gone(db, [owner.uid]) == 1
    assert await objects.gone(db, [owner.uid]) == 0
    assert (await place(db, queue, owner, generation=2)).verdict == "gone"
    assert await objects.forget(db, "default") == 0
    await db.execute(b"UPDATE objects SET gone_at = gone_at - interval '25 hours'")
    assert await objects.forget(db, "default") == 1
    assert await db.rows(b"SELECT 1 FROM object_runs") == []


async def test_only_what_nobody_asks_for_any_more_is_cancelled(db: Database, queue: Queue) -> None:
    """Runs of objects that are gone, and of generations that were followed or refused; once."""
    stays, gone, changed, refused, east = (an_object() for _ in range(5))
    ids = {}
    for owner in (stays, gone, changed, refused):
        ids[owner.uid] = (await place(db, queue, owner)).run_id
    far = await place(db, queue, Owner(east.uid, "ResearchRun", "east", "research", "a", 1))
    await objects.gone(db, [gone.uid, east.uid])
    after = await place(db, queue, changed, generation=2)
    await objects.refused(db, refused.uid, 2)
    [of_the_api] = await submit(db, queue, new_run())
    pusher = Pusher(queue)
    assert await objects.cancel_unwanted(db, pusher, "default") == 3
    assert await objects.cancel_unwanted(db, pusher, "default") == 0
    await pusher.close()
    for owner, wanted in ((stays, "queued"), (gone, "cancelled"), (changed, "cancelled"),
                          (refused, "cancelled")):  # fmt: skip
        assert (await row(db, ids[owner.uid] or ""))["status"] == wanted
    for run_id in (of_the_api, after.run_id, far.run_id):
        assert (await row(db, run_id or ""))["status"] == "queued"


async def test_a_running_run_is_asked_once(db: Database, queue: Queue) -> None:
    owner = an_object()
    placed = await place(db, queue, owner)
    await claim(db, [placed.run_id or ""], worker_id=new_id())
    await objects.gone(db, [owner.uid])
    pusher = Pusher(queue)
    assert await objects.cancel_unwanted(db, pusher, "default") == 1
    assert await objects.cancel_unwanted(db, pusher, "default") == 0
    await pusher.close()
    assert (await row(db, placed.run_id or ""))["cancel_requested_at"] is not None


async def test_what_is_not_on_a_list_is_gone_but_not_what_came_after_it(
    db: Database, queue: Queue
) -> None:
    """Nor what is in another namespace, or cluster, or is of another kind."""
    lost, listed, elsewhere, far = (
        an_object(), an_object(), an_object("other"), an_object(cluster="east"),
    )  # fmt: skip
    for owner in (lost, listed, elsewhere, far):
        await place(db, queue, owner)
    before = await database_time(db)
    young = an_object()
    await place(db, queue, young)
    where: dict[str, Any] = {"cluster": "default", "namespace": "research", "before": before}
    assert await objects.vanished(db, "RunSchedule", [], **where) == 0
    assert await objects.vanished(db, "ResearchRun", [listed.uid], **where) == 1
    rows = await db.rows(b"SELECT uid FROM objects WHERE gone_at IS NOT NULL")
    assert rows == [(lost.uid,)]


async def test_what_is_refused_leaves_nothing_behind(db: Database, queue: Queue) -> None:
    """A session of another workspace, and one that is busy: the generation may be tried again."""
    [first] = [new_run()]
    await submit(db, queue, first)
    owner = an_object()
    with pytest.raises(Conflict, match=first.run_id):
        await place(db, queue, owner, new_run(first.session_id, on_conflict="reject"))
    with pytest.raises(NotFound, match="no such session"):
        await place(db, queue, owner, new_run(first.session_id, workspace_id=2))
    assert await db.rows(b"SELECT 1 FROM object_runs") == []
    assert (await place(db, queue, owner)).verdict == "created"


async def test_cancel_previous_cancels_what_its_session_has(db: Database, queue: Queue) -> None:
    """Also where it runs: its worker is told."""
    first = new_run()
    await submit(db, queue, first)
    await claim(db, [first.run_id], worker_id=new_id())
    run = new_run(first.session_id, on_conflict="cancel_previous")
    assert (await place(db, queue, an_object(), run)).verdict == "created"
    assert (await row(db, first.run_id))["cancel_requested_at"] is not None


async def test_how_runs_stand_is_read_at_once(db: Database, queue: Queue) -> None:
    """The newest run of each; of an answer only the beginning."""
    owner, other = an_object(), an_object()
    await place(db, queue, owner)
    newest = await place(db, queue, owner, generation=2)
    await place(db, queue, other)
    found = await objects.standing(db, [owner.uid, other.uid, new_id()], excerpt=10)
    assert found.keys() == {owner.uid, other.uid}
    assert (found[owner.uid].run_id, found[owner.uid].generation) == (newest.run_id, 2)
    await db.execute(
        b"UPDATE runs SET status = 'succeeded', finished_at = clock_timestamp(),"
        b" result = %(r)s::text::jsonb WHERE run_id = %(i)s::uuid",
        {"r": '{"answer": "' + "x" * 1000 + '"}', "i": newest.run_id},
    )
    found = await objects.standing(db, [owner.uid], excerpt=10)
    assert found[owner.uid].answer == "x" * 10
