"""One line for each step of a start: what is under way, and how long it took."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from researchcopilot.dev.terminal import Terminal, pad


class Progress:
    """`with progress("Postgres"): …` shows the step while it runs, where a terminal is there."""

    def __init__(self, out: Terminal) -> None:
        self._out = out

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        stream, terminal = self._out.stream, self._out.stream.isatty()
        line = f"   {pad(step, 60)}"
        if terminal:
            print(f"{line}     …", end="", file=stream, flush=True)
        begun = time.monotonic()
        try:
            yield
        except BaseException:
            self._out.line("" if terminal else f"{line}failed")
            raise
        took = self._out.tint(f"{time.monotonic() - begun:6.2f} s", "dim")
        self._out.line(f"\r{line}{took}" if terminal else f"{line}{took}")
