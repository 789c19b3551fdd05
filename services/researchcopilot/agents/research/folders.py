"""Folders for work under way: they vanish at the end, or once their process is gone.

A folder is held by a file lock, which the kernel lets go when the process dies, however it dies.
Whoever makes a folder first clears away those that nobody holds any more.
"""

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK = ".lock"


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """An empty folder in `parent`, removed afterwards unless it was moved away."""
    parent.mkdir(parents=True, exist_ok=True)
    for lock in parent.glob(f"*{_LOCK}"):
        _clear_if_left(lock)
    lock, held = _hold_new(parent)
    folder = lock.with_suffix("")
    try:
        folder.mkdir()
        yield folder
    finally:
        _remove(folder, lock)
        os.close(held)


def _hold_new(parent: Path) -> tuple[Path, int]:
    """A new lock file and its descriptor; again if a clearer took it between making and locking."""
    while True:
        lock = parent / f"{uuid.uuid4().hex}{_LOCK}"
        held = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(held, fcntl.LOCK_EX)
        if os.fstat(held).st_nlink:
            return lock, held
        os.close(held)


def _clear_if_left(lock: Path) -> None:
    with contextlib.suppress(OSError):
        held = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(lock.with_suffix(""), lock)
        finally:
            os.close(held)


def _remove(folder: Path, lock: Path) -> None:
    """The folder first: a lock without a folder is harmless, a folder without a lock stays."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        lock.unlink()
