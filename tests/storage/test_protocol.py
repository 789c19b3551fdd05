"""The moves under concurrency: whatever is sent twice, late, or by many at once, the rules hold."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.chaos import protocol, watch
from tests.chaos.scene import POISON, Program
from tests.conftest import Servers

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Claim, NewRun, Outcome, Submission
from researchcopilot.storage import moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.push import Pusher
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.submit import Submitter
from researchcopilot.worker.finish import Finisher
from researchcopilot.worker.handback import Handback
from researchcopilot.worker.hands import Hand

WORKER = new_id()


# Where it has to have been; else the rules have held for nothing.
HURTS = (
    "claim: parked", "claim: mine", "claim: later", "claim: gone", "renewal: lost", "poisoned",
    "finish: stale", "finish: already", "finish: queued", "finish: cancelled", "replayed",
    "mismatch", "taken back: queued", "taken back: failed", "expired: failed", "freed",
    "rejected", "cancel: cancelled", "cancel: cancelling",
)  # fmt: skip


@pytest.mark.parametrize("group", [1, 64])
def test_the_rules_hold_on_hot_sessions(servers: Servers, group: int) -> None:
    """Several processes, few sessions, leases of 30 ms, and poison in the groups: see protocol.

    A slow machine gets to the rare places later: rounds follow until all were seen.
    """
    seen: Counter[str] = Counter()
    for seed in range(1, 7):
        with servers.database(f"protocol_{group}_{seed}") as url:
            report, found = protocol.run(Program(url, seconds=4.0, group=group, seed=seed))
        assert "\n".join(watch.summary(found)) == ""
        seen.update(report.counts)
        if all(seen[place] for place in HURTS):
            return
    raise AssertionError(f"never seen: {[place for place in HURTS if not seen[place]]}")


@pytest.mark.anyio
@pytest.mark.parametrize("poison", POISON, ids=["NUL", "depth"])
@pytest.mark.parametrize("group", [1, 64])
async def test_a_poisoned_result_fails_alone(
    db: Database, queue: Queue, poison: str, group: int
) -> None:
    """A worker's finish: Postgres refuses one result of a group; all others succeed."""
    claims = await claimed(db, queue, group + 1)
    finisher = Finisher(db, WORKER, Handback(queue, WORKER), Pusher(queue))
    outcomes = [Outcome(c.run_id, c.claim_no, WORKER, "succeeded", result='"good"') for c in claims]
    outcomes[group // 2] = Outcome(claims[group // 2].run_id, 1, WORKER, "succeeded", result=poison)
    async with asyncio.timeout(10):
        await asyncio.gather(
            *(finisher.finish(hand(claim), o) for claim, o in zip(claims, outcomes, strict=True))
        )
    ended = await db.rows(b"SELECT status, count(*) FROM runs GROUP BY 1 ORDER BY 1")
    assert ended == [("failed", 1), ("succeeded", group)]
    [(run_id, error)] = await db.rows(b"SELECT run_id, error FROM runs WHERE error IS NOT NULL")
    assert run_id == claims[group // 2].run_id
    assert error["type"] == "finish_refused"


async def claimed(db: Database, queue: Queue, number: int) -> list[Claim]:
    runs = [
        NewRun(new_id(), 1, "echo", "runs", "why?", new_id(), serial=True) for _ in range(number)
    ]
    submitter = Submitter(db, queue)
    await submitter(Submission(tuple(runs)))
    await submitter.close()
    verdicts = await moves.claim(
        db, [run.run_id for run in runs], worker_id=WORKER, claim_id=new_id(), lease_s=60
    )
    return [verdict.claim for verdict in verdicts if verdict.claim is not None]


def hand(claim: Claim) -> Hand:
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    return Hand(claim, f"1.{claim.run_id}", 0.0, ended)


@pytest.mark.anyio
async def test_a_worker_ends_its_lost_claim_and_its_new_one_at_once(
    db: Database, queue: Queue
) -> None:
    """It was stopped past its lease and has taken its own run again: a verdict for each claim."""
    [first] = await claimed(db, queue, 1)
    await db.execute(b"UPDATE runs SET lease_until = clock_timestamp()")
    assert (await moves.reclaim(db, limit=1, max_losses=3)).verdicts == ((first.run_id, "queued"),)
    [second] = await moves.claim(
        db, [first.run_id], worker_id=WORKER, claim_id=new_id(), lease_s=60
    )
    assert second.claim is not None and second.claim.claim_no == 2
    outcomes = [
        Outcome(first.run_id, claim_no, WORKER, "succeeded", result=result)
        for claim_no, result in ((1, '"late"'), (2, '"good"'))
    ]
    finished, _ = await moves.finish(db, WORKER, outcomes)
    assert [f.verdict for f in finished] == ["stale", "succeeded"]
    assert await db.rows(b"SELECT result FROM runs") == [("good",)]
