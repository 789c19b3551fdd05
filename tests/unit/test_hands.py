"""Hands: why a claim has to end, and how sure we are that it is ours."""

import asyncio
import math
import threading
import time
from datetime import UTC, datetime

import pytest

from researchcopilot.core.errors import LostClaim
from researchcopilot.core.models import Claim
from researchcopilot.worker.hands import Ending, Hand, Hands
from researchcopilot.worker.slots import Slots

pytestmark = pytest.mark.anyio
NOW = datetime.now(UTC)


def hand(run_id: str = "r", claim_no: int = 1, lease_until: float = math.inf) -> Hand:
    claim = Claim(
        run_id, claim_no, "w", 1, "s", "runs", "a", None, {}, 1, 3, 0, None, NOW, NOW, NOW
    )
    return Hand(claim, f"1.{run_id}", lease_until, asyncio.get_running_loop().create_future())


async def test_the_first_reason_stands_but_lost_is_lost() -> None:
    one = hand()
    assert one.ending is None and not one.over.done()
    for ending, stands in (
        (Ending.RELEASED, Ending.RELEASED),
        (Ending.CANCELLED, Ending.RELEASED),
        (Ending.LOST, Ending.LOST),
        (Ending.TIMED_OUT, Ending.LOST),
    ):
        one.end(ending)
        assert one.ending is stands
    await one.over


async def test_who_asks_with_a_good_lease_does_not_wait() -> None:
    await asyncio.wait_for(hand().sure(), 0.1)
    # An ending that is not a loss is no reason to stop writing: the claim is still ours.
    ended = hand()
    ended.end(Ending.CANCELLED)
    await asyncio.wait_for(ended.sure(), 0.1)


async def test_in_doubt_all_wait_until_it_is_renewed_far_enough() -> None:
    one = hand(lease_until=time.monotonic() - 1)
    waiting = [asyncio.create_task(one.sure()) for _ in range(3)]
    one.renewed(time.monotonic() - 0.5)  # the answer came too late to be of use
    done, _ = await asyncio.wait(waiting, timeout=0.05)
    assert not done
    one.end(Ending.CANCELLED)  # somebody asked meanwhile: still in doubt
    done, _ = await asyncio.wait(waiting, timeout=0.05)
    assert not done
    one.renewed(math.inf)
    await asyncio.wait_for(asyncio.gather(*waiting), 1)


async def test_in_doubt_all_are_told_of_the_loss() -> None:
    one = hand(lease_until=0.0)
    waiting = [asyncio.create_task(one.sure()) for _ in range(3)]
    await asyncio.wait(waiting, timeout=0.01)
    one.end(Ending.LOST)
    found = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 1)
    assert [type(error) for error in found] == [LostClaim] * 3


async def test_two_claims_of_one_run_are_two_hands() -> None:
    hands = Hands()
    first, second = hand(claim_no=1), hand(claim_no=2)
    hands.add(first)
    hands.add(second)
    assert hands.pairs() == [("r", 1), ("r", 2)]
    hands.remove(first)
    assert hands.get(("r", 2)) is second and len(hands) == 1
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(hands.emptied(), 0.01)
    hands.remove(second)
    hands.remove(second)
    await asyncio.wait_for(hands.emptied(), 0.1)


async def test_a_snapshot_from_another_thread_never_fails() -> None:
    hands, stop, failed = Hands(), threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            try:
                hands.pairs()
            except Exception as error:
                failed.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    many = [hand(str(n)) for n in range(300)]
    for _ in range(20):
        for one in many:
            hands.add(one)
        for one in many:
            hands.remove(one)
    stop.set()
    thread.join()
    assert failed == []


async def test_slots_are_waited_for_only_when_none_is_free() -> None:
    slots = Slots("runs", 2)
    slots.use()
    await asyncio.wait_for(slots.one_free(), 0.1)
    slots.use()
    waits = asyncio.create_task(slots.one_free())
    done, _ = await asyncio.wait((waits,), timeout=0.02)
    assert not done and slots.free == 0
    slots.give_back()
    await asyncio.wait_for(waits, 0.5)
    assert slots.free == 1
