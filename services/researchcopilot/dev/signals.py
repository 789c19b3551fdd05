"""Ctrl-C, SIGTERM and a closed terminal mean the same here: end in order, leave nothing behind."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def interruptible() -> AbstractContextManager[None]:
    """Inside, each of them raises KeyboardInterrupt (also a SIGINT that a shell's `&` ignores)."""
    return _handled_by(_interrupt)


def uninterrupted() -> AbstractContextManager[None]:
    """Inside, none of them does anything: an impatient second Ctrl-C must not stop the clearing."""
    return _handled_by(signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def _handled_by(
    handler: Callable[[int, FrameType | None], object] | signal.Handlers,
) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is told of signals
        return
    before = {number: signal.signal(number, handler) for number in ENDING}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
