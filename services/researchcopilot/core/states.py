"""The state machine of a run: one table, MOVES.

SQL functions, CHECK constraints and the picture in ARCHITECTURE.md are compared with it by
`tests/house/test_moves.py`. No move leaves a terminal status; that is what "exactly one terminal
state" rests on, so it must never get an exception here.
"""

from enum import StrEnum
from typing import Final, NamedTuple


class Status(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL: Final = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED})


class Move(NamedTuple):
    """One row of the state machine; `source` is None where a run is born."""

    verb: str
    source: Status | None
    target: Status
    why: str


MOVES: Final = (
    Move("submit", None, Status.QUEUED, "accepted"),
    Move("claim", Status.QUEUED, Status.RUNNING, "a worker takes it under a lease"),
    Move("finish", Status.RUNNING, Status.SUCCEEDED, "the agent returned a result"),
    Move("finish", Status.RUNNING, Status.FAILED, "a permanent error, or no attempt is left"),
    Move("finish", Status.RUNNING, Status.CANCELLED, "it was asked to stop"),
    Move("finish", Status.RUNNING, Status.QUEUED, "retry: later, with backoff"),
    Move("release", Status.RUNNING, Status.QUEUED, "a draining worker hands it back, refunded"),
    Move("release", Status.RUNNING, Status.CANCELLED, "handed back, but it was asked to stop"),
    Move("reclaim", Status.RUNNING, Status.QUEUED, "its worker died, refunded; counts as a loss"),
    Move("reclaim", Status.RUNNING, Status.FAILED, "its workers died too often: worker_lost"),
    Move("reclaim", Status.RUNNING, Status.CANCELLED, "its worker died; it was asked to stop"),
    Move("expire", Status.QUEUED, Status.FAILED, "past its deadline: never_started or deadline"),
    Move("cancel", Status.QUEUED, Status.CANCELLED, "asked to stop before, or between, its claims"),
    Move("replay", None, Status.QUEUED, "a new run from a dead letter"),
    Move("fire", None, Status.QUEUED, "a tick of a schedule"),
    Move("trigger", None, Status.QUEUED, "a schedule, fired by hand"),
)

PAIRS: Final = frozenset((move.source, move.target) for move in MOVES)


def allowed(source: Status | None, target: Status) -> bool:
    """Is there a move from `source` (None: birth) to `target`?"""
    return (source, target) in PAIRS
