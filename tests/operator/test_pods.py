"""A worker's Pod dies and its runs are queued again at once, whatever their leases.

All leases here last a minute: what comes back in time did so because of what the Pod said.
"""

from datetime import UTC, datetime, timedelta

import pytest
from tests.operator.cluster import PODS, Json, Served
from tests.operator.signal_cases import CASES, Case
from tests.operator.stage import (
    InPod,
    a_pod,
    container,
    in_cluster,
    listed,
    merged,
    missed_a_renewal,
    operating,
    queued_again,
    stamp,
    statuses,
    with_operator,
    worker_in,
)
from tests.support import eventually, ledger, metric, new_run, prompt, row, submit

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Outcome
from researchcopilot.core.settings import Settings
from researchcopilot.storage import moves, workers
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.renewal import Renewer

pytestmark = pytest.mark.anyio


async def test_each_death_gives_the_runs_back_with_its_reason(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    """In the ledger, in the metrics, once each, and whatever comes twice, late or out of order."""
    deaths = [case for case in CASES if case.said]
    before = {case.said[0]: taken_back(case.said[0]) for case in deaths}
    async with operating(with_operator(settings), db, queue, served):
        died = [(case, *await in_cluster(served.cluster, db, queue, runs=2)) for case in deaths]
        for case, pod, _ in died:
            await tell(case, pod, served)
        for case, _, worker in died:
            await queued(case, db, worker)
    for case, _, worker in died:
        for run_id in worker.run_ids:
            found = await row(db, run_id)
            assert (found["claim_no"], found["attempts"], found["losses"]) == (1, 0, 1), case.name
            assert await ledger(db, run_id) == [(1, "lost", False)], case.name
            assert await told(db, run_id) == case.said[0], case.name
    for reason, count in before.items():
        ours = sum(2 for case in deaths if case.said[0] == reason)
        assert taken_back(reason) == count + ours
    assert sorted(listed(settings)) == sorted(i for *_, worker in died for i in worker.run_ids)
    with prompt(settings) as client:
        assert client.keys("queue:*processing*") == []


async def tell(case: Case, pod: Json, served: Served) -> None:
    for kind, more in case.events:
        await served.cluster.tell(PODS, kind or "ADDED", merged(pod, more))


async def queued(case: Case, db: Database, worker: InPod) -> None:
    try:
        await eventually(lambda: queued_again(db, worker))
    except AssertionError as error:
        raise AssertionError(f"{case.name}: not taken back") from error


async def told(db: Database, run_id: str) -> str:
    """The reason in the ledger, which is told to people as well."""
    claim = await db.one(b"SELECT error FROM claims WHERE run_id = %(r)s", {"r": run_id})
    assert claim is not None
    assert "The worker on host a, process 1, Pod a is gone: its " in claim["error"]["message"]
    reason: str = claim["error"]["reason"]
    return reason


def taken_back(reason: str) -> float:
    return metric("researchcopilot_reclaims_total", reason=reason, status="queued")


async def test_what_is_no_death_takes_nothing_back(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    alive = []
    async with operating(with_operator(settings), db, queue, served):
        for case in CASES:
            if not case.said:
                pod, worker = await in_cluster(served.cluster, db, queue, runs=2)
                await tell(case, pod, served)
                alive.append((case, worker))
        await heard(served, settings, db, queue)
    for case, worker in alive:
        assert await statuses(db, worker.run_ids) == ["running", "running"], case.name


async def heard(served: Served, settings: Settings, db: Database, queue: Queue) -> None:
    """All that was told before this has been acted upon: a death that was told later has been."""
    pod, last = await in_cluster(served.cluster, db, queue, name=f"last-{new_id()[:8]}")
    await served.cluster.remove(PODS, pod["metadata"]["name"])
    await eventually(lambda: queued_again(db, last))


async def test_they_go_to_the_head_oldest_first_before_all_that_waits(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    async with operating(with_operator(settings), db, queue, served):
        _, worker = await in_cluster(served.cluster, db, queue, runs=3)
        waiting = await submit(db, queue, new_run())
        await served.cluster.remove(PODS, "a")
        await eventually(lambda: len(listed(settings)) == 4)
    assert listed(settings) == [*worker.run_ids, *waiting]


async def test_what_was_taken_and_not_claimed_comes_back_too(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    """It stands in the processing list alone; the janitor would look at that two leases later."""
    async with operating(with_operator(settings), db, queue, served):
        pod = a_pod("a")
        await served.cluster.apply(PODS, pod)
        worker = await worker_in(db, queue, pod, 0)
        taken = await submit(db, queue, new_run())
        await queue.take("runs", worker.worker_id, 1)
        assert listed(settings) == []
        await served.cluster.remove(PODS, "a")
        await eventually(lambda: listed(settings) == taken)


async def test_a_restart_ends_only_what_ran_before_it(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    """The Pod and its uid stay: the process that runs now has to be left alone."""
    now = datetime.now(UTC)
    async with operating(with_operator(settings), db, queue, served):
        pod, old = await in_cluster(served.cluster, db, queue, runs=2)
        new = await worker_in(db, queue, pod, 2, started=now + timedelta(seconds=3))
        died = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": stamp(now)}}
        again = {"running": {"startedAt": stamp(now + timedelta(seconds=2))}}
        body = merged(pod, container(state=again, lastState=died, restartCount=1))
        await served.cluster.apply(PODS, body)
        await eventually(lambda: queued_again(db, old))
        await heard(served, settings, db, queue)
    assert await statuses(db, new.run_ids) == ["running", "running"]


async def test_an_end_that_is_told_late_spares_the_next_process(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    """A watch that was behind tells of the end when another container is at work already."""
    now = datetime.now(UTC)
    async with operating(with_operator(settings), db, queue, served):
        pod, old = await in_cluster(served.cluster, db, queue)
        new = await worker_in(db, queue, pod, started=now + timedelta(seconds=5))
        finished = stamp(now + timedelta(seconds=3))
        died = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": finished}}
        await served.cluster.tell(PODS, "MODIFIED", merged(pod, container(state=died)))
        await eventually(lambda: queued_again(db, old))
        await heard(served, settings, db, queue)
    assert await statuses(db, new.run_ids) == ["running"]


async def test_a_row_without_a_start_is_ended_by_a_restart_only_if_it_is_silent(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    """Workers of the version before do not tell their start: nothing is guessed about them."""
    async with operating(with_operator(settings), db, queue, served):
        pod = a_pod("a")
        await served.cluster.apply(PODS, pod)
        alive, silent = [await worker_in(db, queue, pod, process_started_at=None) for _ in range(2)]
        await missed_a_renewal(db, silent.worker_id)
        again = {"running": {"startedAt": stamp(datetime.now(UTC) + timedelta(hours=1))}}
        await served.cluster.apply(PODS, merged(pod, container(state=again, restartCount=1)))
        await eventually(lambda: queued_again(db, silent))
    assert await statuses(db, alive.run_ids) == ["running"]


async def test_a_worker_that_outlives_its_pod_is_fenced_and_goes_on(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    """A Pod that was deleted by force may still run: it is told `lost`, its finish is stale, and
    what it claims from then on is its own."""
    async with operating(with_operator(settings), db, queue, served):
        pod, worker = await in_cluster(served.cluster, db, queue)
        [run_id] = worker.run_ids
        await served.cluster.remove(PODS, "a")
        await eventually(lambda: queued_again(db, worker))
        renewer = Renewer(settings.database, 5)
        assert renewer.renew(worker.worker_id, [(run_id, 1)], 60) == {(run_id, 1): "lost"}
        renewer.close()
        late = Outcome(run_id, 1, worker.worker_id, "succeeded", result='"late"')
        [verdict], _ = await moves.finish(db, worker.worker_id, [late])
        assert verdict.verdict == "stale"
        await workers.stopped(db, new_id())
        more = await submit(db, queue, new_run())
        [claimed] = await moves.claim(
            db, more, worker_id=worker.worker_id, claim_id=new_id(), lease_s=60
        )
        assert claimed.verdict == "claimed"
        await served.cluster.tell(PODS, "DELETED", pod)
        await heard(served, settings, db, queue)
    assert await statuses(db, more) == ["running"]


async def test_a_memory_bomb_fails_after_its_losses_and_frees_its_session(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    """As with leases: three workers, then `worker_lost`, and who waits for the turn has it."""
    session = new_id()
    async with operating(with_operator(settings), db, queue, served):
        [bomb] = await submit(db, queue, new_run(session))
        [next_one] = await submit(db, queue, new_run(session))
        for number in range(settings.recovery.max_losses):
            pod = a_pod(f"p{number}")
            await served.cluster.apply(PODS, pod)
            worker = await worker_in(db, queue, pod, 0)
            await moves.claim(
                db, [bomb, next_one], worker_id=worker.worker_id, claim_id=new_id(), lease_s=60
            )
            assert (await row(db, bomb))["status"] == "running"
            await served.cluster.remove(PODS, f"p{number}")
            await eventually(lambda: not_running(db, bomb))
        failed = await row(db, bomb)
        assert (failed["status"], failed["error"]["type"]) == ("failed", "worker_lost")
        await eventually(lambda: next_one in listed(settings))
    assert not (await row(db, next_one))["parked"]


async def not_running(db: Database, run_id: str) -> bool:
    return bool((await row(db, run_id))["status"] != "running")


async def test_cluster_wide_it_asks_for_the_pods_of_its_own_namespace_alone(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    """A release of the same name in another namespace is somebody else's."""
    served.wide = True
    async with operating(with_operator(settings, cluster_wide=True), db, queue, served):
        other = merged(a_pod("a"), {"metadata": {"namespace": "elsewhere"}})
        await served.cluster.apply(PODS, other)
        foreign = await worker_in(db, queue, other)
        await served.cluster.remove(PODS, "a", "elsewhere")
        await heard(served, settings, db, queue)
    assert await statuses(db, foreign.run_ids) == ["running"]
    asked = [request for request in served.cluster.asked if request.resource == PODS]
    assert {request.params["fieldSelector"] for request in asked} == {"metadata.namespace=research"}


async def test_pods_are_only_read(
    settings: Settings, db: Database, queue: Queue, served: Served
) -> None:
    """And the API server filters: not one Pod of another release comes over the wire."""
    async with operating(with_operator(settings), db, queue, served):
        other = merged(a_pod("other"), {"metadata": {"labels": {"app": "else"}}})
        await served.cluster.apply(PODS, other)
        await in_cluster(served.cluster, db, queue)
        await served.cluster.remove(PODS, "a")
        await heard(served, settings, db, queue)
    asked = [request for request in served.cluster.asked if request.resource == PODS]
    assert {request.method.value for request in asked} == {"GET"}
    assert all(request.params["labelSelector"] for request in asked)


async def test_an_event_that_cannot_be_read_keeps_no_other_from_being_heard(
    settings: Settings, db: Database, queue: Queue, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged and dropped; no API server says such a thing, and something else may."""
    async with operating(with_operator(settings), db, queue, served) as operator:
        _, worker = await in_cluster(served.cluster, db, queue)
        odd = merged(a_pod("odd"), {"status": {"containerStatuses": 7}})
        await served.cluster.tell(PODS, "MODIFIED", odd)
        await eventually(lambda: "'int' object is not iterable" in caplog.text)
        await served.cluster.remove(PODS, "a")
        await eventually(lambda: queued_again(db, worker))
        assert not operator.task.done()
