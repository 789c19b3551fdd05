"""Run a program that dies with its parent: `tether.py PARENT SIGNAL UID GID PROGRAM [ARGUMENT…]`.

A program of its own and not `preexec_fn`: no Python runs between fork and exec of a process with
threads. The order matters: a change of user clears PR_SET_PDEATHSIG, so it is set after that, and
the parent is looked at after that, since it may have died in between. UID -1 keeps the user.
Imports nothing of ours; it is started by path, also as root for another user.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def become(uid: int, gid: int) -> None:
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)


def tie(parent: int, number: int) -> None:
    """Let the kernel send us `number` when our parent ends; other systems leave that to `guard`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def main(arguments: list[str]) -> None:
    parent, number, uid, gid = (int(argument) for argument in arguments[:4])
    program = arguments[4:]
    become(uid, gid)
    tie(parent, number)
    # Python ignores these two, and an ignored signal stays ignored through exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execv(program[0], program)
    except OSError as error:
        print(f"{program[0]} cannot be run: {error.strerror}", file=sys.stderr)
        os._exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
