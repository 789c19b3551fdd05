"""Children: processes that are started, watched and ended here, each with a log file of its own.

A child is tethered (it dies with us), leads a process group of its own (Ctrl-C on a terminal
reaches only us, and we end the children in order), and is known to the guard. All are started
from one thread that lives as long as this process: the kernel's tether is tied to the *thread*
that forked, and a thread of a pool would take its children along when it ends.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from researchcopilot.core.errors import ResearchCopilotError
from researchcopilot.dev.users import User

_HERE = Path(__file__).parent
# How a child is asked to end: signals in order, each with the seconds it is given.
Manner = Sequence[tuple[signal.Signals, float]]
GENTLY: Manner = ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0))


class StackError(ResearchCopilotError):
    """A part of the stack on this machine does not do what it should."""


@cache
def _starter() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="children")


def tail(path: Path, lines: int = 20) -> str:
    """The last lines of a log, for a person who asks why."""
    try:
        text = path.read_bytes()[-20_000:].decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def until(done: Callable[[], bool], seconds: float, pause: float = 0.01) -> bool:
    """Look again and again, at most so long. False: it did not happen."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True


class Guard:
    """Our end of the pipe to the undertaker; see `guard`."""

    def __init__(self, folder: Path | None = None, keep_open: Sequence[int] = ()) -> None:
        """`folder` is removed at the end; `keep_open` are files (locks) that it holds till then."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_HERE / "guard.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            pass_fds=keep_open,
        )
        if folder is not None:
            self._say(f"folder {folder.absolute()}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def watch(self, pid: int) -> None:
        self._say(f"+{pid}")

    def forget(self, pid: int) -> None:
        self._say(f"-{pid}")

    def close(self, seconds: float = 15.0) -> None:
        """End what is left, remove the folder, and wait until that is done."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            return
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # somebody killed it; the tether still holds


class Child:
    """One process. `start` again after it ended; the log goes on in the same file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        guard: Guard,
        log: Path,
        env: Mapping[str, str] | None = None,
        user: User | None = None,
        at_parents_death: signal.Signals = signal.SIGKILL,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self.env = None if env is None else dict(env)
        self._guard = guard
        self._user = user
        self._death = at_parents_death
        self._process: subprocess.Popen[bytes] | None = None
        self._cleared = False
        self._said: set[signal.Signals] = set()

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return None if self._process is None else self._process.poll()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        if not self.alive:
            _starter().submit(self._start).result()

    def _start(self) -> None:
        uid, gid = (-1, -1) if self._user is None else (self._user.uid, self._user.gid)
        numbers = [os.getpid(), int(self._death), uid, gid]
        tether = [sys.executable, "-I", "-S", str(_HERE / "tether.py"), *map(str, numbers)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*tether, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.env,
                start_new_session=True,
            )
        self._cleared = False
        self._said.clear()
        self._guard.watch(self._process.pid)

    def send(self, number: signal.Signals) -> None:
        """To the process alone, not to its group."""
        if self.alive:
            os.kill(self.pid, number)

    def wait(self, seconds: float) -> int | None:
        """Its exit code, or None if it still runs after so long."""
        assert self._process is not None
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self._clear()
        return code

    def stop(self, manner: Manner = GENTLY) -> int | None:
        """Ask, then insist. Its exit code."""
        if self._process is None:
            return None
        code = self.wait(0)
        for number, seconds in manner:
            if code is not None:
                break
            self.ask(number)
            code = self.wait(seconds)
        return code

    def ask(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to end, and go on; `stop` waits. Asked once: a second SIGTERM means now."""
        if number not in self._said:
            self._said.add(number)
            self.send(number)

    def kill(self) -> None:
        """`kill -9`, and wait until it is gone."""
        self.stop(((signal.SIGKILL, 10.0),))

    def _clear(self) -> None:
        """Once, after its end: whoever it left behind in its group ends too."""
        if self._cleared:
            return
        self._cleared = True
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the usual case: nobody
            os.killpg(self.pid, signal.SIGKILL)
        self._guard.forget(self.pid)

    def tail(self, lines: int = 20) -> str:
        return tail(self.log, lines)

    def describe_end(self) -> str:
        """`exit code 70`, `signal SIGKILL`."""
        code = self.exit_code
        if code is not None and code < 0:
            return f"signal {signal.Signals(-code).name}"
        return f"exit code {code}"
