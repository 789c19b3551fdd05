"""The process group of one isolated run: started, waited for, and ended as a whole.

Whatever the agent has started in it ends with it. The group is killed while its first process, even
if dead, has not been waited for: so long no other group can have its number.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import BinaryIO

from researchcopilot.worker.frames import Frames

MODULE = "researchcopilot.worker.child"
STACK_LIMIT = 65_536


def _start(end: int, dump: int, *numbers: int) -> "subprocess.Popen[bytes]":
    """Takes milliseconds: there is nothing to wait for."""
    return subprocess.Popen(
        [sys.executable, "-m", MODULE, *map(str, (end, dump, *numbers))],
        stdin=subprocess.DEVNULL,
        pass_fds=(end, dump),
        process_group=0,
    )


class ProcessGroup:
    """A process of ours in a group of its own. `open` starts it; `end` is owed to it."""

    def __init__(self, process: "subprocess.Popen[bytes]", frames: Frames, dump: BinaryIO) -> None:
        self._process = process
        self._dump = dump
        self.frames = frames
        self.exited = asyncio.Event()
        self.stack = ""  # after `end`: what it was doing when a fatal signal or SIGTERM came
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._watch, args=(loop,), name="watch", daemon=True).start()

    @classmethod
    async def open(cls, memory_mb: int) -> "ProcessGroup":
        """Start one. Raises OSError."""
        with contextlib.ExitStack() as undo:
            ours, theirs = (undo.enter_context(end) for end in socket.socketpair())
            # Where a fatal signal leaves the stack; readable also after the process is gone.
            dump = undo.enter_context(os.fdopen(os.memfd_create("stack"), "w+b", buffering=0))
            process = _start(theirs.fileno(), dump.fileno(), os.getpid(), memory_mb)
            theirs.close()
            undo.pop_all()
        return cls(process, await Frames.over(ours), dump)

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """To every process of the group."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    async def end(self) -> int:
        """Kill what is left of the group; the exit code of its first process, -n for a signal."""
        self.signal(signal.SIGKILL)
        await self.exited.wait()
        self.frames.close()
        with self._dump:
            self._dump.seek(0)
            self.stack = self._dump.read(STACK_LIMIT).decode(errors="replace")
        code = self._process.wait()
        self._reap()
        return code

    def _reap(self) -> None:
        """Where we are process 1 of a container, what the agent has left behind becomes our child
        and, dead as it is, keeps its number until we wait for it."""
        try:
            os.waitpid(-self.pid, os.WNOHANG)
        except ChildProcessError:
            return  # elsewhere there is nobody
        threading.Thread(target=_wait_for_all, args=(self.pid,), name="reap", daemon=True).start()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        # WNOWAIT: seen, and not yet waited for.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self.exited.set)


def _wait_for_all(group: int) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-group, 0)
