"""The undertaker: waits until its parent is gone, then ends what is left and removes the folder.

It reads lines: `+PID` watch this process and its group, `-PID` it has ended, `folder PATH` remove
this at the end. When the pipe closes, by a good end or by `kill -9` of the parent, it gives the
watched processes a moment (their tether has told them already), kills those that stay, and
removes the folder. Started by path, in a session of its own, so that Ctrl-C does not reach it.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable

MOMENT = 2.0


def gone(pid: int) -> bool:
    """Has this process ended? A zombie has: whoever should wait for it is dead or late."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except ProcessLookupError:
        return True
    except OSError:
        return sys.platform == "linux"  # no /proc elsewhere: the signal has reached it


def wait_for(pids: Iterable[int], seconds: float) -> list[int]:
    """Those that are still there after so long."""
    until = time.monotonic() + seconds
    left = [pid for pid in pids if not gone(pid)]
    while left and time.monotonic() < until:
        time.sleep(0.01)
        left = [pid for pid in left if not gone(pid)]
    return left


def bury(pids: set[int]) -> None:
    wait_for(pids, MOMENT)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    wait_for(pids, MOMENT)


def remove(folder: str) -> None:
    """Twice if need be: a process that was just killed may have made a file meanwhile."""
    for _ in range(5):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        time.sleep(0.1)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    pids: set[int] = set()
    folder = ""
    for line in sys.stdin:
        word = line.rstrip("\n")
        if word.startswith("+"):
            pids.add(int(word[1:]))
        elif word.startswith("-"):
            pids.discard(int(word[1:]))
        else:
            folder = word.removeprefix("folder ")
    bury(pids)
    if folder:
        remove(folder)


if __name__ == "__main__":
    main()
