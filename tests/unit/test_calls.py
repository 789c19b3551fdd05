"""Tasks that an agent starts: none of them can end the loop, and in all else they are as before."""

import asyncio
import sys
import warnings
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from researchcopilot.agents.registry import make_agent
from researchcopilot.core.errors import AgentExited
from researchcopilot.worker.calls import Call, contain_tasks
from researchcopilot.worker.context import WorkerContext

NO_CONTEXT = cast(WorkerContext, None)


def run_as_agent(body: Any) -> Any:
    """What `body()` returns or raises as an agent of a loop whose tasks are contained."""

    async def main() -> Any:
        contain_tasks(asyncio.get_running_loop())

        async def agent(ctx: Any, given: Any) -> Any:
            return await body()

        call = Call(make_agent("it", agent), NO_CONTEXT, None)
        await asyncio.wait((call.future,), timeout=10)
        error = call.error()
        if error is not None:
            raise error
        return call.future.result()

    return asyncio.run(main())


async def leave(code: int) -> None:
    await asyncio.sleep(0)
    sys.exit(code)


async def in_a_task() -> None:
    await asyncio.create_task(leave(3))


async def in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(leave(3))
        group.create_task(asyncio.sleep(60))


async def nobody_waits() -> str:
    task = asyncio.create_task(leave(3))
    await asyncio.wait((task,))
    assert isinstance(task.exception(), AgentExited)
    return "went on"


async def while_it_is_cancelled() -> None:
    async def cleans_up() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            sys.exit(3)

    task = asyncio.create_task(cleans_up())
    await asyncio.sleep(0)
    task.cancel()
    await task


async def in_a_task_of_a_task() -> None:
    await asyncio.gather(in_a_task(), asyncio.sleep(0))


@pytest.mark.parametrize(
    "body", [in_a_task, in_a_group, while_it_is_cancelled, in_a_task_of_a_task]
)
def test_exit_in_a_task_is_an_error_of_the_agent(body: Any) -> None:
    with pytest.raises(AgentExited, match=r"sys\.exit\(3\)"):
        run_as_agent(body)


def test_a_task_that_nobody_waits_for_ends_only_itself() -> None:
    assert run_as_agent(nobody_waits) == "went on"


def test_in_all_else_they_are_as_before() -> None:
    """Cancelled before its first step, named, shown with its stack, and timed out."""

    async def body() -> list[Any]:
        never = asyncio.create_task(asyncio.sleep(60))
        never.cancel()
        await asyncio.wait((never,))
        named = asyncio.create_task(asyncio.sleep(60), name="named")
        await asyncio.sleep(0)
        shown = repr(named), [frame.f_code.co_name for frame in named.get_stack()]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(named, 0.01)
        return [never.cancelled(), named.cancelled(), named.get_name(), "sleep" in shown[0],
                shown[1]]  # fmt: skip

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run_as_agent(body) == [True, True, "named", True, ["sleep"]]


def test_tasks_that_are_no_agents_are_left_alone() -> None:
    async def main() -> Coroutine[Any, Any, Any] | None:
        contain_tasks(asyncio.get_running_loop())
        coroutine = asyncio.sleep(0)
        task = asyncio.create_task(coroutine)
        same = task.get_coro() is coroutine
        await task
        return coroutine if same else None

    assert asyncio.run(main()) is not None
