"""Grouping: a lone call waits for nobody, a crowd shares one trip, and no caller is forgotten."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support import metric

from researchcopilot.core.errors import Busy, Unavailable
from researchcopilot.runtime.batch import Group, Limits

pytestmark = pytest.mark.anyio
LIMIT = 5.0


class Gate:
    """A `send` that doubles its items, and is held back until it is let go."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.groups: list[list[int]] = []
        self.begun = asyncio.Event()
        self.open = asyncio.Event()
        if is_open:
            self.open.set()

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.groups.append(list(items))
        self.begun.set()
        await self.open.wait()
        return [item * 2 for item in items]


async def all_of(tasks: Sequence[Any], limit: float = LIMIT) -> list[Any]:
    async with asyncio.timeout(limit):
        return list(await asyncio.gather(*tasks, return_exceptions=True))


async def busy_group(
    gate: Gate, limits: Limits, name: str = "test"
) -> tuple[Group[int, int], asyncio.Task[int]]:
    """A group whose first call is under way, so that whoever comes now has to wait."""
    group: Group[int, int] = Group(gate, limits=limits, name=name)
    first = asyncio.create_task(group(0))
    async with asyncio.timeout(LIMIT):
        await gate.begun.wait()
    return group, first


def crowd(group: Group[int, int], items: Sequence[int], **member: int) -> list[asyncio.Task[int]]:
    return [asyncio.create_task(group(item, **member)) for item in items]


async def joined(group: Group[int, int], number: int) -> None:
    """Until so many wait for the next group, and go on waiting."""
    async with asyncio.timeout(LIMIT):
        for turn in itertools.count():
            # Some turns more: whoever wants to send them too early has done so then.
            if group.waiting >= number and turn > 10:
                return
            await asyncio.sleep(0)


async def test_a_lone_call_waits_for_nobody() -> None:
    gate = Gate()
    group: Group[int, int] = Group(gate)
    call = asyncio.create_task(group(21))
    async with asyncio.timeout(LIMIT):
        await gate.begun.wait()
    assert gate.groups == [[21]]
    gate.open.set()
    assert await all_of([call]) == [42]


async def test_a_group_goes_when_the_one_before_is_back() -> None:
    gate = Gate()
    group, first = await busy_group(gate, Limits())
    others = crowd(group, range(1, 100))
    await joined(group, 99)
    assert gate.groups == [[0]]
    gate.open.set()
    assert await all_of([first, *others]) == [item * 2 for item in range(100)]
    assert gate.groups == [[0], list(range(1, 100))]


async def test_two_lanes_are_two_groups_at_once() -> None:
    gate = Gate()
    group: Group[int, int] = Group(gate, lanes=2)
    calls = crowd(group, (1,))
    async with asyncio.timeout(LIMIT):
        await gate.begun.wait()
        gate.begun.clear()
        calls += crowd(group, (2,))
        await gate.begun.wait()
    calls += crowd(group, (3,))
    await joined(group, 1)
    assert gate.groups == [[1], [2]]
    gate.open.set()
    assert await all_of(calls) == [2, 4, 6]


async def test_a_group_has_at_most_so_many_rows() -> None:
    gate = Gate()
    group, first = await busy_group(gate, Limits(max_rows=10))
    others = crowd(group, (1, 2, 3), rows=4) + crowd(group, (4,), rows=50) + crowd(group, (5,))
    await joined(group, 5)
    gate.open.set()
    assert await all_of([first, *others]) == [0, 2, 4, 6, 8, 10]
    assert gate.groups == [[0], [1, 2], [3], [4], [5]], "a large member has to go, alone"


async def test_a_group_has_at_most_so_many_bytes() -> None:
    gate = Gate()
    group, first = await busy_group(gate, Limits(max_bytes=100))
    others = crowd(group, (1, 2, 3), size=40) + crowd(group, (4,), size=1000)
    await joined(group, 4)
    gate.open.set()
    assert await all_of([first, *others]) == [0, 2, 4, 6, 8]
    assert gate.groups == [[0], [1, 2], [3], [4]]


async def test_a_full_line_is_busy_and_those_in_it_are_served() -> None:
    gate = Gate()
    group, first = await busy_group(gate, Limits(max_waiting=3))
    others = crowd(group, (1, 2, 3))
    await joined(group, 3)
    with pytest.raises(Busy, match="3 callers are waiting"):
        await group(4)
    gate.open.set()
    assert await all_of([first, *others]) == [0, 2, 4, 6]
    assert await group(4) == 8


@pytest.mark.parametrize("poisoned", [{0}, {37}, {63}, {1, 2}, {0, 21, 22, 63}])
async def test_a_poisoned_member_fails_alone(poisoned: set[int]) -> None:
    sent: list[list[int]] = []

    async def send(items: Sequence[int]) -> list[int]:
        sent.append(list(items))
        if poisoned.intersection(items):
            raise ValueError(f"poisoned among {len(items)}")
        return [item * 2 for item in items]

    group: Group[int, int] = Group(send)
    answers = await all_of(crowd(group, range(64)))
    for item, answer in enumerate(answers):
        if item in poisoned:
            assert isinstance(answer, ValueError)
            assert str(answer) == "poisoned among 1"
        else:
            assert answer == item * 2
    assert len(sent) <= 2 + 13 * len(poisoned), "it is found by halves, not one by one"
    assert [item for items in sent for item in items if len(items) == 1 and item in poisoned]


def passing(error: BaseException) -> bool:
    return isinstance(error, Unavailable)


async def test_what_may_pass_sends_the_same_group_again() -> None:
    sent: list[list[int]] = []

    async def send(items: Sequence[int]) -> list[int]:
        sent.append(list(items))
        if len(sent) <= 3:
            raise Unavailable
        return [item * 2 for item in items]

    group: Group[int, int] = Group(send, again=passing)
    assert await all_of(crowd(group, range(5))) == [0, 2, 4, 6, 8]
    assert sent == [[0, 1, 2, 3, 4]] * 4


async def test_a_poisoned_member_is_found_also_after_what_passed() -> None:
    sent: list[list[int]] = []

    async def send(items: Sequence[int]) -> list[int]:
        sent.append(list(items))
        if len(sent) % 2:
            raise Unavailable
        if 3 in items:
            raise ValueError("poisoned")
        return [item * 2 for item in items]

    group: Group[int, int] = Group(send, again=passing)
    answers = await all_of(crowd(group, range(5)))
    assert [answer for answer in answers if isinstance(answer, int)] == [0, 2, 4, 8]
    assert isinstance(answers[3], ValueError)


async def test_patience_ends_and_tells_all_of_the_group() -> None:
    async def send(items: Sequence[int]) -> list[int]:
        raise Unavailable(f"away for {len(items)}")

    group: Group[int, int] = Group(send, again=passing, limits=Limits(patience_s=0.05))
    answers = await all_of(crowd(group, range(5)))
    assert {str(answer) for answer in answers} == {"away for 5"}, "what may pass is not halved"
    assert all(isinstance(answer, Unavailable) for answer in answers)


async def test_a_cancelled_caller_never_cancels_its_group() -> None:
    gate = Gate()
    group, first = await busy_group(gate, Limits())
    others = crowd(group, (1, 2, 3))
    await joined(group, 3)
    first.cancel()  # in the group that is under way
    others[1].cancel()  # in the one that waits
    gate.open.set()
    answers = await all_of([first, *others])
    assert [type(answers[0]), type(answers[2])] == [asyncio.CancelledError] * 2
    assert [answers[1], answers[3]] == [2, 6]
    assert gate.groups == [[0], [1, 2, 3]], "what was asked for is sent, whoever still listens"


@pytest.mark.parametrize("ticks", range(12))
async def test_who_joins_at_the_moment_a_lane_ends_is_served(ticks: int) -> None:
    """Each step of the loop around the end of a lane, since one of them once forgot its caller."""
    gate = Gate(is_open=True)
    group: Group[int, int] = Group(gate)
    first = asyncio.create_task(group(1))
    for _ in range(ticks):
        await asyncio.sleep(0)
    late = asyncio.create_task(group(2))
    assert await all_of([first, late]) == [2, 4]


async def test_who_joins_from_the_answer_of_the_last_is_served() -> None:
    group: Group[int, int] = Group(Gate(is_open=True))
    served: list[asyncio.Task[int]] = []

    def join_once_more(done: asyncio.Task[int]) -> None:
        if len(served) < 200:
            served.append(asyncio.ensure_future(group(len(served))))
            served[-1].add_done_callback(join_once_more)

    join_once_more(asyncio.create_task(group(0)))
    async with asyncio.timeout(LIMIT):
        while len(served) < 200 or not served[-1].done():
            await asyncio.wait(served)
    assert [call.result() for call in served] == [item * 2 for item in range(200)]


async def test_a_send_that_forgets_somebody_is_an_error_and_no_wait() -> None:
    async def send(items: Sequence[int]) -> list[int]:
        return [item * 2 for item in items if item != 3]

    group: Group[int, int] = Group(send)
    answers = await all_of(crowd(group, range(5)))
    assert [answer for answer in answers if isinstance(answer, int)] == [0, 2, 4, 8]
    assert isinstance(answers[3], RuntimeError)
    assert await all_of([group(7)]) == [14], "the lane has to survive it"


async def test_close_waits_for_all_that_were_promised() -> None:
    gate = Gate()
    group, first = await busy_group(gate, Limits(max_rows=1))
    others = crowd(group, (1, 2, 3))
    await joined(group, 3)
    closing = asyncio.create_task(group.close())
    await asyncio.wait([closing], timeout=0.01)
    assert not closing.done()
    gate.open.set()
    await all_of([closing])
    assert gate.groups == [[0], [1], [2], [3]]
    assert await all_of([first, *others]) == [0, 2, 4, 6]
    await all_of([group.close()])


async def test_sizes_are_told() -> None:
    gate = Gate()
    group, first = await busy_group(gate, Limits(), name="told")
    others = crowd(group, (1, 2, 3))
    await joined(group, 3)
    gate.open.set()
    await all_of([first, *others])
    parts = [
        metric(f"researchcopilot_group_size_{part}", group="told") for part in ("count", "sum")
    ]
    assert parts == [2, 4]


class Kept(Exception):
    """Somebody keeps one of them waiting."""


def is_kept(error: BaseException) -> bool:
    return isinstance(error, Kept)


async def test_one_that_is_kept_waiting_keeps_nobody_else(anyio_backend: str) -> None:
    """Protects: neither those that were sent with it nor those that come after it wait for it."""
    kept = {3, 5}

    async def send(items: Sequence[int]) -> list[int]:
        if kept & set(items):
            raise Kept
        return [item * 2 for item in items]

    limits = Limits(patience_s=None)
    group: Group[int, int] = Group(send, again=is_kept, apart=is_kept, limits=limits)
    tasks = crowd(group, range(8))
    assert await all_of([tasks[n] for n in range(8) if n not in kept]) == [0, 2, 4, 8, 12, 14]
    assert await all_of([group(20)]) == [40]
    assert not tasks[3].done() and not tasks[5].done()
    kept.clear()
    assert await all_of([tasks[3], tasks[5]]) == [6, 10]
    await group.close()


async def test_the_patience_of_one_that_is_kept_waiting_ends(anyio_backend: str) -> None:
    """Also of those that stand behind another one beside the line."""

    async def send(items: Sequence[int]) -> list[int]:
        raise Kept

    limits = Limits(patience_s=0.2)
    group: Group[int, int] = Group(send, again=is_kept, apart=is_kept, limits=limits)
    found = await all_of(crowd(group, range(3)))
    assert [type(error) for error in found] == [Kept] * 3
    await group.close()
