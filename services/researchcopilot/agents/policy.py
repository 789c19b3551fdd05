"""When a failed attempt is followed by another: what an agent says of its errors.

Unknown errors are retried: most of what goes wrong outside passes. An agent that knows better names
the types that no retry can help (`permanent`), or the only ones worth it (`retry_on`); `raise
Permanent` and `raise RetryLater` say so for one error, and go before both. What the platform finds
(a time-out, a crash) is retried unless it is named in `permanent`.
"""

from dataclasses import dataclass
from typing import Any

from researchcopilot.core.errors import AgentFault, ConfigError, Permanent

ErrorTypes = tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`max_attempts` is for runs whose request names none. Retry n waits between nothing and
    min(cap_s, base_s * 2^(n-1)); None: what the worker's settings say."""

    max_attempts: int = 3
    base_s: float | None = None
    cap_s: float | None = None
    permanent: ErrorTypes = ()
    retry_on: ErrorTypes | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError: a policy that cannot work is found when the agent is imported."""
        most: Any = self.max_attempts
        if not isinstance(most, int) or not 1 <= most <= 100:
            raise ConfigError(f"max_attempts is {most!r}; give 1 to 100.")
        for name, seconds in (("retry_base_s", self.base_s), ("retry_cap_s", self.cap_s)):
            if seconds is not None and not 0 <= seconds <= 86_400:
                raise ConfigError(f"{name} is {seconds!r}; give seconds from 0 to 86400.")
        given: dict[str, Any] = {"permanent": self.permanent, "retry_on": self.retry_on or ()}
        for name, types in given.items():
            if not isinstance(types, tuple) or not all(_is_error(kind) for kind in types):
                raise ConfigError(f"{name} is {types!r}; give a tuple of exception types.")

    def final(self, error: BaseException) -> str | None:
        """Why no other attempt can help, as a sentence; None if one may."""
        kind = type(error).__name__
        if isinstance(error, Permanent):
            return f"{kind} is permanent."
        if isinstance(error, self.permanent):
            return f"The agent declares {kind} permanent."
        if self.retry_on is not None and not isinstance(error, (*self.retry_on, AgentFault)):
            return f"The agent is retried on other errors than {kind} only."
        return None


def _is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)
