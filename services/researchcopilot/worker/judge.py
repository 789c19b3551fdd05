"""What came of a call: the text of its result, or a Failure that says what it means for the run.

Plain data, because a call may have run in another process: exception types exist only there, so
that the agent's retry policy is asked where the error was raised.
"""

import math
from dataclasses import dataclass

from researchcopilot.agents.policy import RetryPolicy
from researchcopilot.core.errors import (
    AgentCrashed,
    LostClaim,
    RetryLater,
    RunCancelled,
    TimedOut,
)
from researchcopilot.core.text import clean_text
from researchcopilot.worker.result import describe_error

LONGEST_WAIT_S = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class Failure:
    """`kind`: final, retry (`after` seconds if the agent said so), cancelled, lost. `error` is
    {"type", "message"} and perhaps "trace" and "final" (why no attempt follows). `reason`, of a
    retry: error, asked (by the agent), crashed (its process), timed_out."""

    kind: str
    error: dict[str, str]
    after: float | None = None
    reason: str = "error"


def judge(error: BaseException, policy: RetryPolicy, trace: str = "") -> Failure:
    """What an error of an agent means."""
    described = describe_error(error, trace)
    if isinstance(error, LostClaim):
        return Failure("lost", described)
    if isinstance(error, RunCancelled):
        return Failure("cancelled", described)
    if isinstance(error, RetryLater):
        return Failure("retry", described, _asked_wait(error), "asked")
    if final := policy.final(error):
        return Failure("final", {**described, "final": clean_text(final, 300)})
    return Failure("retry", described, reason=_reason(error))


def _reason(error: BaseException) -> str:
    if isinstance(error, TimedOut):
        return "timed_out"
    return "crashed" if isinstance(error, AgentCrashed) else "error"


def _asked_wait(error: RetryLater) -> float | None:
    """Seconds; None if what the agent gave is no number, since the failure path must not fail."""
    try:
        after = float(error.after)
    except (TypeError, ValueError):
        return None
    return None if math.isnan(after) else min(max(after, 0.0), LONGEST_WAIT_S)
