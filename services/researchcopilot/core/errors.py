"""Everything that goes wrong here has a name, and its message says what to do.

ResearchCopilotError
├── ConfigError            a setting is unknown or bad; the process stops
├── Unavailable            Postgres or Redis does not answer; ridden out with backoff
│   ├── SchemaBehind       the database is older than this code; `migrate` has to run
│   └── LoginRefused       a server answers, and does not let us in
├── Busy                   a waiting line is full; try again later (503)
├── BadInput               a caller sent something we refuse (4xx)
│   ├── NotFound
│   ├── Conflict
│   └── TooLarge
├── AgentFault             an agent ended a run without a result
│   ├── Permanent          a retry cannot help: fail at once
│   │   ├── BadResult      what it returned is not JSON, or too large
│   │   └── BadAgentInput  the run's input is not what the agent takes
│   ├── RetryLater         ask again after a while
│   ├── TimedOut           it ran past its time-out
│   ├── AgentExited        it tried to end the process
│   ├── AgentCancelled     something that it awaited was cancelled
│   ├── AgentCrashed       its process ended before it did
│   ├── OutOfMemory        its process may not have so much memory
│   └── DuplicateStep      one step name twice in one claim
└── Signal                 flow, not fault: never logged as an error
    ├── LostClaim          another worker owns the run now
    ├── LostLock           somebody else may hold the lock now
    └── RunCancelled       somebody asked for the run to be cancelled
"""


class ResearchCopilotError(Exception):
    """Something went wrong in ResearchCopilot."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())

    @property
    def message(self) -> str:
        return str(self.args[0])


class ConfigError(ResearchCopilotError):
    """A setting is unknown or has a bad value."""


class Unavailable(ResearchCopilotError):
    """A server does not answer. Nothing is lost; the call can be repeated."""


class SchemaBehind(Unavailable):
    """The database schema is older than this code. Run `python -m researchcopilot migrate`."""


class LoginRefused(Unavailable):
    """A server answers, and refuses our name or password. Put right what its URL says."""


class Busy(ResearchCopilotError):
    """The waiting line is full. Try again in a moment."""


class BadInput(ResearchCopilotError):
    """The input is refused.

    `field` is a JSON path (`$.input`), a parameter or a header name; `code` is a stable word.
    """

    code = "invalid"

    def __init__(self, message: str, *, field: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.code = code or type(self).code


class NotFound(BadInput):
    """There is no such thing in this workspace."""

    code = "not_found"


class Conflict(BadInput):
    """The thing is not in a state that allows this."""

    code = "conflict"


class TooLarge(BadInput):
    """The input is larger than the limit."""

    code = "too_large"


class AgentFault(ResearchCopilotError):
    """The agent ended without a result."""


class Permanent(AgentFault):
    """Raise this in an agent when a retry cannot help."""


class BadResult(Permanent):
    """The agent returned something that cannot be stored."""


class BadAgentInput(Permanent):
    """The run's input is not what this agent takes."""


class RetryLater(AgentFault):
    """Raise this in an agent to be run again after `after` seconds."""

    def __init__(self, message: str | None = None, *, after: float) -> None:
        super().__init__(message)
        self.after = after


class TimedOut(AgentFault):
    """The agent ran past its time-out."""


class AgentExited(AgentFault):
    """The agent called sys.exit(), which ends the run, not the worker."""


class AgentCancelled(AgentFault):
    """The agent ended with CancelledError although nobody had asked it to stop."""


class AgentCrashed(AgentFault):
    """The process of an isolated run ended before its agent did, or there is none to be had."""


class OutOfMemory(AgentFault):
    """The agent wanted more memory than its process may have."""


class DuplicateStep(AgentFault):
    """A step name was used twice in one claim; the second would return the first one's value."""


class Signal(ResearchCopilotError):
    """Flow, not fault."""


class LostClaim(Signal):
    """Another worker owns this run now; whatever is done here is dropped."""


class LostLock(Signal):
    """Somebody else may hold the lock now; what it guards must not go on."""


class RunCancelled(Signal):
    """The run was asked to stop."""
