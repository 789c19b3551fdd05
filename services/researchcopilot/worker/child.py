"""The process of one isolated run: `python -m researchcopilot.worker.child`, started by a worker.

It imports the agents, waits for one claim, executes it, says what came of it, and is killed with
its whole group. It decides nothing about the run: every write goes through the worker. It dies with
its worker, together with all that the agent has started in the group, and leaves its stack behind
when a fatal signal or SIGTERM ends it.
"""

import asyncio
import contextlib
import ctypes
import faulthandler
import logging
import mmap
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from researchcopilot.agents.registry import Agent, load_agents
from researchcopilot.core.errors import BadResult, OutOfMemory
from researchcopilot.core.settings import DatabaseSettings, RedisSettings
from researchcopilot.runtime import log as logs
from researchcopilot.runtime.loop import run
from researchcopilot.worker.calls import Call, contain_tasks
from researchcopilot.worker.child_context import ChildContext, read_claim
from researchcopilot.worker.frames import Frames
from researchcopilot.worker.judge import judge
from researchcopilot.worker.result import encode_result

log = logging.getLogger(__name__)
EXIT_ALONE = 72  # the worker has gone
RESERVE = 16 * 1_048_576  # bytes, on top of the limit; pages that nobody touches
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
LEADER_GONE = signal.SIGRTMIN


def main(argv: list[str]) -> int:
    end, dump, worker_pid, memory_mb = map(int, argv)
    die_with(worker_pid)
    keep_watch(os.getpid(), (end, dump))
    limit_memory(memory_mb)
    faulthandler.enable(dump)
    faulthandler.register(signal.SIGTERM, dump, chain=True)
    return run(serve(socket.socket(fileno=end), load_agents(), memory_mb))


def die_with(worker_pid: int) -> None:
    """SIGKILL when the worker dies; at once if it has died already."""
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != worker_pid:
        os._exit(EXIT_ALONE)


def keep_watch(leader: int, files: Iterable[int]) -> None:
    """What the agent has started goes with us also where the worker cannot see to it, since that
    was what killed us: a second process of the group, which ends the group when we have ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    if os.fork():
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    try:
        for number in files:
            os.close(number)  # or the worker would not see that the agent's end of the pipe closes
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, LEADER_GONE)
        if os.getppid() == leader:
            signal.sigwait({LEADER_GONE})
    finally:
        os.killpg(0, signal.SIGKILL)


def limit_memory(memory_mb: int) -> None:
    """Of writable memory of its own, for each process of the group. Where the kernel has to choose
    somebody all the same, it is us and not the worker: whatever a kubelet has given to that (up to
    999), there is nothing above ours."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if memory_mb:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = memory_mb * 1_048_576 + RESERVE
        soft = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, most))


def with_reserve(agent: Agent) -> Agent:
    """There must be memory to say that there was none. It is freed on the way out of the agent by
    what asks for none itself: where the last byte is gone, no line of Python would get so far."""
    fn = agent.fn

    def plain(context: Any, given: Any) -> Any:
        with mmap.mmap(-1, RESERVE, flags=PRIVATE):
            return fn(context, given)

    async def waiting(context: Any, given: Any) -> Any:
        with mmap.mmap(-1, RESERVE, flags=PRIVATE):
            return await fn(context, given)

    return replace(agent, fn=plain if agent.blocking else waiting)


async def serve(end: socket.socket, agents: Mapping[str, Agent], memory_mb: int) -> int:
    frames = await Frames.over(end)
    job = await frames.receive()
    if job is None:
        return 0  # a spare that was not needed
    logs.setup(job["log"]["level"], job["log"]["format"])
    logs.bind_process(part="worker", **job["bound"], isolated=os.getpid())
    contain_tasks(asyncio.get_running_loop())
    claim = read_claim(job["claim"])
    context = ChildContext(
        frames,
        claim,
        DatabaseSettings(**job["database"]),
        RedisSettings(**job["redis"]),
        Path(job["cache_dir"]),
        job["limit_s"],
    )
    agent = with_reserve(agents[claim.agent])
    frames.send(started=True)
    call = Call(agent, context, claim.input)
    listening = asyncio.create_task(listen(frames, context, call))
    await asyncio.wait((call.future,))
    listening.cancel()
    ended = what_came_of(call, agent, job["max_result_bytes"], memory_mb)
    await context.close()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    frames.send(ended=ended)
    await frames.flush()
    await frames.receive()
    end_group()
    return 0


async def listen(frames: Frames, context: ChildContext, call: Call) -> None:
    """What the worker says while the agent goes on."""
    while (message := await frames.receive()) is not None:
        if "answer" in message:
            context.answered(message)
        elif "stop" in message:
            context.told_to_stop = True
            frames.send(where=call.where())
            call.cancel()
    end_group()


def end_group() -> None:
    """The worker has gone, and nobody else would."""
    os.killpg(0, signal.SIGKILL)


def what_came_of(call: Call, agent: Agent, limit: int, memory_mb: int) -> dict[str, Any]:
    error = call.error()
    try:
        if error is None:
            return {"text": encode_result(call.future.result(), limit)}
    except BadResult as refused:
        error = refused
    if isinstance(error, MemoryError) and memory_mb:
        told = OutOfMemory(
            f"The agent wanted more memory than the {memory_mb} MB of RC_WORKER_MEMORY_LIMIT_MB. "
            "Raise that, or let the agent take its work in smaller pieces."
        )
        told.__cause__ = error
        error = told
    return {"failure": asdict(judge(error, agent.options.retry))}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
