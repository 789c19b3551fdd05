"""What a fault is, and what it touches.

`acts` is called from a thread and returns when the fault is over: what was killed runs again,
what was stopped goes on. It calls `struck` at the moment when the blow has fallen; then the driver
notes which runs it touches: those of `touches`, a query of `TOUCHED`. It returns how much it was
seen to do (processes killed, connections cut, writes refused); 0 is a fault without effect, and
the test has failed: it would have proved nothing.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.stage import LINES, Stage

from researchcopilot.dev.processes import until

SEEN_S = 30.0
# Runs that wait in a list or set of Redis, and those that somebody executes.
TOUCHED = {
    "in its hands": b"""
        SELECT run_id, claim_no FROM runs WHERE status = 'running' AND worker_id IN (
            SELECT worker_id FROM workers WHERE pid = %(pid)s ORDER BY started_at DESC LIMIT 1)""",
    "just accepted": b"""
        SELECT run_id, claim_no FROM runs WHERE status = 'queued' AND NOT parked AND claim_no = 0
        AND run_at <= clock_timestamp() AND created_at > clock_timestamp() - interval '1 second'""",
    "waiting": b"""
        SELECT run_id, claim_no FROM runs WHERE status = 'queued' AND NOT parked""",
    "delayed": b"""
        SELECT run_id, claim_no FROM runs WHERE status = 'queued' AND NOT parked
        AND run_at > clock_timestamp()""",
    "all": b"""
        SELECT run_id, claim_no FROM runs
        WHERE status = 'running' OR status = 'queued' AND NOT parked""",
}


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault that strikes: the parts that it holds, chance, and whom to tell that it has."""

    stage: Stage
    names: tuple[str, ...]
    rand: random.Random
    struck: Callable[[], None]

    @property
    def name(self) -> str:
        """The part: the first, if there are several; also if only its lines are held."""
        return self.names[0].removeprefix(LINES)

    def leases(self, least: float, most: float) -> float:
        """Some seconds, as a number of leases."""
        return self.stage.lease_s * self.rand.uniform(least, most)

    def until(self, true: Callable[[], bool], limit_s: float = SEEN_S) -> bool:
        """False: not within the limit, or the test was broken off."""
        over = self.stage.over
        return until(lambda: over.is_set() or true(), limit_s, 0.05) and not over.is_set()

    def grown(self, count: Callable[[], int], before: int, limit_s: float = SEEN_S) -> int:
        """By how much, once it has; 0: not within the limit."""
        self.until(lambda: count() > before, limit_s)
        return max(0, count() - before)


@dataclass(frozen=True, slots=True)
class Fault:
    """`targets`: kinds of parts (or lines, or servers) that it needs, one of each kind. `seen`:
    the words for what `acts` counts."""

    name: str
    targets: tuple[str, ...]
    touches: str
    seen: str
    acts: Callable[[Strike], int]


def targets_of(fault: Fault, names: list[str], rand: random.Random) -> tuple[str, ...]:
    """A part for each kind that the fault needs, by name; servers are their own kind."""
    chosen: list[str] = []
    for kind in fault.targets:
        fitting = [name for name in names if _is_a(name, kind) and name not in chosen]
        chosen.append(rand.choice(fitting) if fitting else kind)
    return tuple(chosen)


def _is_a(name: str, kind: str) -> bool:
    return kind in (name, name.rpartition(" ")[0])
