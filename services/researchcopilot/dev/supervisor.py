"""Starts again what crashed, later and later: what crashes at once would only fill its log.

A part that ended by itself with code 0 was asked to (somebody sent it SIGTERM): it stays down. One
that says that it is badly configured (2) would say so again: that ends the stack.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from researchcopilot.dev.processes import Child, StackError
from researchcopilot.dev.stack import Stack

BADLY_CONFIGURED = 2
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 10.0
# Having lived so long, it starts from the first pause again.
STEADY = 30.0


class _HasChild(Protocol):
    """A new child at each start of a server, the same one at each start of a part."""

    @property
    def child(self) -> Child: ...


@dataclass(slots=True)
class _Watched:
    name: str
    server: _HasChild
    start: Callable[[], None]
    pause: float = FIRST_PAUSE
    since: float = 0.0
    again_at: float | None = None
    left: bool = False


class Supervisor:
    """Call `look` again and again. `say` is told of each crash and each start."""

    def __init__(self, stack: Stack, say: Callable[[str], None]) -> None:
        self._say = say
        now = time.monotonic()
        self._watched = [
            _Watched("Postgres", stack.postgres, stack.postgres.start, since=now),
            _Watched("Valkey", stack.valkey, stack.valkey.start, since=now),
            *(_Watched(part.name, part, part.launch, since=now) for part in stack.parts.values()),
        ]

    def look(self) -> None:
        for watched in self._watched:
            if not (watched.left or watched.server.child.alive):
                self._mind(watched)

    def _mind(self, watched: _Watched) -> None:
        if watched.again_at is None:
            self._judge(watched)
        elif time.monotonic() >= watched.again_at:
            watched.again_at = None
            watched.since = time.monotonic()
            watched.start()
            self._say(f"{watched.name} was started again (process {watched.server.child.pid})")

    def _judge(self, watched: _Watched) -> None:
        child, now = watched.server.child, time.monotonic()
        child.wait(0)  # whoever it left behind goes too
        if child.exit_code == 0:
            watched.left = True
            self._say(f"{watched.name} ended by itself, as it was asked to; it stays down")
            return
        if child.exit_code == BADLY_CONFIGURED:
            raise StackError(f"{watched.name} is badly configured. It says:\n{child.tail(5)}")
        watched.pause = FIRST_PAUSE if now - watched.since > STEADY else watched.pause
        watched.again_at = now + watched.pause
        self._say(
            f"{watched.name} crashed ({child.describe_end()}); again in {watched.pause:g} s. "
            f"Its log: {child.log}"
        )
        watched.pause = min(watched.pause * 2, LONGEST_PAUSE)
