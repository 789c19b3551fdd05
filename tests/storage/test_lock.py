"""Locks: one holder, only the holder gives back and renews, and who loses it is told.

On each server of lock_servers.py.
"""

import asyncio
import os
import signal
import threading
import time
from contextlib import AsyncExitStack

import pytest
from tests.storage.lock_servers import Server
from tests.support import eventually, metric

from researchcopilot.core.errors import LostLock, Unavailable
from researchcopilot.core.settings import RedisSettings
from researchcopilot.storage import keeper
from researchcopilot.storage.lock import Locks
from researchcopilot.storage.lua import load

pytestmark = pytest.mark.anyio


async def test_a_wrong_token_does_not_release(server: Server, locks: Locks) -> None:
    """The seed's demonstration: B cannot delete the lock of A, A can; no other key is touched."""
    release = server.client.register_script(load("lock_release"))
    keys = ["lock:digest", "lock:digest:free"]
    async with locks.hold("digest") as held:
        assert held is not None
        assert release(keys=keys, args=["token-B", 1000]) == 0
        assert server.client.get("lock:digest") == held.token
        assert release(keys=keys, args=[held.token, 1000]) == 1
        assert server.client.get("lock:digest") is None


async def test_only_the_holder_renews(server: Server, locks: Locks) -> None:
    """The seed's demonstration: the right token makes it last longer, a wrong one changes nothing,
    and nobody renews what is gone."""
    renew = server.client.register_script(load("lock_renew"))
    async with locks.hold("digest", ttl_s=10) as held:
        assert held is not None
        assert renew(keys=["lock:digest"], args=["token-B", 60_000]) == 0
        assert server.client.pttl("lock:digest") <= 10_000
        assert renew(keys=["lock:digest"], args=[held.token, 60_000]) == 1
        assert 50_000 < server.client.pttl("lock:digest") <= 60_000
    assert renew(keys=["lock:digest"], args=[held.token, 60_000]) == 0
    assert server.client.get("lock:digest") is None


async def test_two_replicas_and_three_rounds(server: Server, locks: Locks) -> None:
    """The seed's demonstration: in each round exactly one of the two executes, the other skips."""
    other = server.locks()
    executed: list[tuple[int, str]] = []
    together = [asyncio.Barrier(2) for _ in range(6)]

    async def replica(name: str, mine: Locks) -> None:
        for number in range(3):
            await together[2 * number].wait()
            async with mine.hold("rebuild") as held:
                if held is not None:
                    executed.append((number, name))
                await together[2 * number + 1].wait()  # held until the other has tried

    await asyncio.gather(replica("A", locks), replica("B", other))
    assert [number for number, _ in executed] == [0, 1, 2]
    await other.close()


async def test_it_always_runs_out_by_itself(server: Server, locks: Locks) -> None:
    """Protects: there is no moment at which a crash would leave a lock for ever."""
    async with locks.hold("scheduler", ttl_s=5):
        assert 4000 < server.client.pttl("lock:scheduler") <= 5000
    async with locks.hold("scheduler", ttl_s=0.1, wait_s=0) as held:
        assert held is not None
    assert server.client.exists("lock:scheduler") == 0


async def test_a_holder_that_blocks_the_loop_keeps_it(server: Server, locks: Locks) -> None:
    """Protects: renewal does not depend on the loop that does the work."""
    async with locks.hold("rebuild", ttl_s=0.4) as held:
        assert held is not None
        time.sleep(1.0)  # noqa: ASYNC251
        held.check()
        assert server.client.get("lock:rebuild") == held.token
        assert not held.lost.is_set()


@pytest.mark.parametrize("how", ["deleted", "stolen", "flushed"])
async def test_a_holder_is_told_that_it_lost(server: Server, locks: Locks, how: str) -> None:
    """Protects: by an event, at the next check, and before its time is over; and what somebody
    else holds by then is not given back by us. Counted once, whatever happened to it."""
    before = counted("rebuild")
    async with locks.hold("rebuild", ttl_s=0.9) as held:
        assert held is not None
        if how == "deleted":
            server.client.delete("lock:rebuild")
        elif how == "flushed":
            server.client.flushall()
        else:
            server.client.set("lock:rebuild", "thief", px=60_000)
        async with asyncio.timeout(0.8):
            await held.lost.wait()
        with pytest.raises(LostLock, match="rebuild"):
            held.check()
    assert server.client.get("lock:rebuild") == ("thief" if how == "stolen" else None)
    assert counted("rebuild") == (before[0] + 1, before[1] + 1)


def counted(lock: str) -> tuple[float, float]:
    """Times that it was taken, and lost."""
    names = ("researchcopilot_lock_acquisitions_total", "researchcopilot_lock_losses_total")
    return metric(names[0], lock=lock), metric(names[1], lock=lock)


async def test_a_loss_that_no_renewal_saw_is_counted(server: Server, locks: Locks) -> None:
    """Protects: a round that is shorter than a third of its lock and was not alone. By kind: what
    stands after the colon is whose it is, and has no end."""
    before = counted("short")
    async with locks.hold("short:7", ttl_s=60):
        server.client.flushall()
    async with locks.hold("short:8", ttl_s=60):
        pass
    assert counted("short") == (before[0] + 2, before[1] + 1)


async def test_names_that_agents_give_do_not_grow_without_end(
    server: Server, locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "_kinds", {"known"})
    monkeypatch.setattr(keeper, "MOST_KINDS", 2)
    before = counted("other")
    for name in ("known:1", "second:1", "third:1", "fourth:1"):
        async with locks.hold(name):
            pass
    assert counted("other")[0] == before[0] + 2


async def test_a_check_in_a_blocked_loop_knows_it_too(server: Server, locks: Locks) -> None:
    """Protects: `check` needs no loop, since whoever blocks one asks from there."""
    async with locks.hold("rebuild", ttl_s=0.6) as held:
        assert held is not None
        server.client.delete("lock:rebuild")
        assert threading.Event().wait(0.5) is False
        with pytest.raises(LostLock):
            held.check()


async def test_a_server_that_stands_still_loses_it_in_time(server: Server, locks: Locks) -> None:
    """Protects: without an answer the holder gives up when its time is over."""
    async with locks.hold("rebuild", ttl_s=0.6) as held:
        assert held is not None
        os.kill(server.child.pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(3):
                await held.lost.wait()
            with pytest.raises(LostLock):
                held.check()
        finally:
            os.kill(server.child.pid, signal.SIGCONT)


async def test_each_holder_is_told_in_the_moment_its_time_is_over(
    server: Server, locks: Locks
) -> None:
    """Protects: not once the renewal that hangs has given up, and not one after the other: by then
    somebody else is at work."""
    async with AsyncExitStack() as stack:
        many = [
            await stack.enter_async_context(locks.hold(f"rebuild:{number}", ttl_s=2.4))
            for number in range(5)
        ]
        started = time.monotonic()
        os.kill(server.child.pid, signal.SIGSTOP)
        stack.callback(os.kill, server.child.pid, signal.SIGCONT)
        async with asyncio.timeout(10):
            for held in many:
                assert held is not None
                await held.lost.wait()
                assert held.is_lost
        assert time.monotonic() - started < 2.4 + 0.2


async def test_without_a_server_it_is_not_taken(anyio_backend: str) -> None:
    """Protects: Redis down means not acquired, and says so."""
    locks = Locks(RedisSettings(url="redis://127.0.0.1:1/0"))
    with pytest.raises(Unavailable, match="Redis does not answer"):
        async with locks.hold("rebuild"):
            raise AssertionError("it was taken")
    await locks.close()


async def test_waiters_come_one_after_the_other_without_a_stampede(
    server: Server, locks: Locks
) -> None:
    """Protects: a release wakes one waiter, at once, and not all of them: with twenty that would
    be two hundred tries."""
    crowd = [server.locks() for _ in range(20)]
    inside = 0
    served = 0
    server.client.config_resetstat()

    async def wait_for_it(mine: Locks) -> None:
        nonlocal inside, served
        async with mine.hold("rebuild", ttl_s=30, wait_s=20) as held:
            assert held is not None
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            served += 1
            inside -= 1

    async with locks.hold("rebuild", ttl_s=30), AsyncExitStack() as stack:
        waiting = [asyncio.create_task(wait_for_it(mine)) for mine in crowd]
        stack.callback(lambda: [task.cancel() for task in waiting])
        await eventually(lambda: len(blocked(server)) == len(crowd))
        stack.pop_all()
    started = time.monotonic()
    await asyncio.wait_for(asyncio.gather(*waiting), 15)
    assert served == len(crowd)
    assert time.monotonic() - started < 5  # thirty seconds each, were they not woken
    assert server.client.info("commandstats")["cmdstat_set"]["calls"] <= 5 * len(crowd)
    for one in crowd:
        await one.close()


def blocked(server: Server) -> list[object]:
    return [one for one in server.client.client_list() if "b" in one["flags"]]


async def test_a_waiter_outlives_a_holder_that_died(server: Server, locks: Locks) -> None:
    """Protects: no hint comes from the dead; the lock runs out and the waiter has it then."""
    server.client.set("lock:rebuild", "of a process that was killed", px=700)
    started = time.monotonic()
    async with locks.hold("rebuild", wait_s=10) as held:
        assert held is not None
        assert 0.5 < time.monotonic() - started < 3


async def test_a_waiter_gives_up_when_its_patience_is_over(server: Server, locks: Locks) -> None:
    """Protects: a wait has an end, and ends with None."""
    server.client.set("lock:rebuild", "another", px=60_000)
    started = time.monotonic()
    async with locks.hold("rebuild", wait_s=0.5) as held:
        assert held is None
    assert 0.4 < time.monotonic() - started < 3
    assert server.client.get("lock:rebuild") == "another"


async def test_a_cancelled_waiter_takes_nobody_with_it(server: Server, locks: Locks) -> None:
    """Protects: others of the same process that wait for this lock get it all the same."""

    async def wait_for_it() -> bool:
        async with locks.hold("rebuild", wait_s=10) as held:
            return held is not None

    async with locks.hold("rebuild"):
        first = asyncio.create_task(wait_for_it())
        await eventually(lambda: blocked(server))
        second = asyncio.create_task(wait_for_it())
        first.cancel()
        await asyncio.wait((first,))
    assert await asyncio.wait_for(second, 10)
    assert server.client.exists("lock:rebuild") == 0
