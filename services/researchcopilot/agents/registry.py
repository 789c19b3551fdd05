"""Which agents this worker has: whatever its environment announces as `researchcopilot.agents`.

A package adds an agent with an entry point; nothing has to be configured. An agent that cannot be
imported stops the worker at start: at night, in the middle of its first run, would be worse.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from researchcopilot.agents.contract import AgentOptions
from researchcopilot.core.errors import ConfigError
from researchcopilot.core.models import AgentInfo

GROUP = "researchcopilot.agents"


@dataclass(frozen=True, slots=True)
class Agent:
    """A loaded agent. `blocking`: a plain function, which runs in a thread."""

    name: str
    fn: Callable[..., Any]
    options: AgentOptions
    blocking: bool

    @property
    def info(self) -> AgentInfo:
        o = self.options
        return AgentInfo(self.name, o.version, o.queue, o.description, o.input_schema,
                         o.retry.max_attempts)  # fmt: skip


def load_agents() -> Mapping[str, Agent]:
    """Every agent that is installed, by name. Raises ConfigError for one that cannot be used."""
    agents: dict[str, Agent] = {}
    for point in entry_points(group=GROUP):
        if point.name in agents:
            raise ConfigError(f"Two installed packages announce an agent {point.name!r}.")
        agents[point.name] = make_agent(point.name, _load(point))
    return agents


def make_agent(name: str, fn: Any) -> Agent:
    """An agent from a function with two parameters: ctx and input."""
    if not callable(fn):
        raise ConfigError(f"The agent {name!r} is no function: {fn!r}.")
    try:
        inspect.signature(fn).bind(None, None)
    except TypeError:
        raise ConfigError(f"The agent {name!r} does not take (ctx, input).") from None
    options = getattr(fn, "__agent__", None) or AgentOptions(
        description=(fn.__doc__ or "").strip().partition("\n")[0]
    )
    call = fn if inspect.isroutine(fn) else getattr(fn, "__call__", fn)  # noqa: B004
    waits = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(call)
    return Agent(name, fn, options, blocking=not waits)


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        raise ConfigError(
            f"The agent {point.name!r} ({point.value}) cannot be imported: {error!r}. "
            "Mend or uninstall its package."
        ) from error
