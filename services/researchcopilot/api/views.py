"""How runs, messages and agents look from outside: one table renders them and describes them.

A `View` is a component of the OpenAPI document. Everything it names is always there; what is not
known yet is null. Lists and accepted runs leave out `input` and `result`, which can be large.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from researchcopilot.api.render import moment
from researchcopilot.core.models import AgentInfo, Message, Run
from researchcopilot.core.schemas import Schema
from researchcopilot.core.states import Status

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shown(Generic[T]):
    """One property: its name, its JSON Schema, and where it comes from."""

    name: str
    schema: Schema
    get: Callable[[T], Any]


class View(Generic[T]):
    def __init__(self, name: str, doc: str, shown: Sequence[Shown[T]]) -> None:
        self.name = name
        self.doc = doc
        self.shown = tuple(shown)
        self._getters = tuple((item.name, item.get) for item in shown)

    def __call__(self, value: T) -> dict[str, Any]:
        return {name: get(value) for name, get in self._getters}

    def schema(self) -> Schema:
        return {
            "type": "object",
            "description": self.doc,
            "additionalProperties": False,
            "properties": {item.name: item.schema for item in self.shown},
            "required": [item.name for item in self.shown],
        }


def text(doc: str = "", **more: Any) -> Schema:
    return {"type": "string", **({"description": doc} if doc else {}), **more}


def uuid(doc: str = "") -> Schema:
    return text(doc, format="uuid")


def time(doc: str = "") -> Schema:
    return text(doc, format="date-time")


def whole(doc: str = "") -> Schema:
    return {"type": "integer", **({"description": doc} if doc else {})}


def maybe(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def run_path(run_id: str) -> str:
    return f"/v1/runs/{run_id}"


def _links(run: Run) -> dict[str, str | None]:
    session = run.session_id
    return {
        "self": run_path(run.run_id),
        "messages": f"/v1/sessions/{session}/messages" if session else None,
    }


_LINKS: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"self": text(), "messages": maybe(text())},
    "required": ["self", "messages"],
}
ERROR: Schema = {
    "type": ["object", "null"],
    "description": "Why it failed, or why the last attempt did",
    "properties": {"type": text(), "message": text()},
    "additionalProperties": text(),
}
_METADATA: Schema = {"type": "object", "additionalProperties": text()}

_COMMON: tuple[Shown[Run], ...] = (
    Shown("run_id", uuid(), lambda run: run.run_id),
    Shown("session_id", maybe(uuid("null for upkeep")), lambda run: run.session_id),
    Shown("workspace_id", whole(), lambda run: run.workspace_id),
    Shown("agent", text("what it executes"), lambda run: run.agent),
    Shown("queue", text(), lambda run: run.queue),
    Shown("status", text(enum=[status.value for status in Status]), lambda run: run.status),
    Shown(
        "parked",
        {"type": "boolean", "description": "queued, and waits for its session's turn"},
        lambda run: run.parked,
    ),
    Shown("attempts", whole("claims that count against max_attempts"), lambda run: run.attempts),
    Shown("max_attempts", whole(), lambda run: run.max_attempts),
    Shown("losses", whole("workers that died with it"), lambda run: run.losses),
    Shown("metadata", _METADATA, lambda run: run.metadata),
    Shown(
        "timeout_s",
        {"type": ["number", "null"], "description": "null: the worker's default"},
        lambda run: run.timeout_s,
    ),
    Shown("worker_id", maybe(uuid("who runs it now")), lambda run: run.worker_id),
    Shown("index_version", maybe(whole("the corpus it saw")), lambda run: run.index_version),
    Shown("schedule_id", maybe(uuid("whose tick made it")), lambda run: run.schedule_id),
    Shown("follows", maybe(uuid("the run that it is a digest of")), lambda run: run.follows),
    Shown("replay_of", maybe(uuid("the run that it repeats")), lambda run: run.replay_of),
    Shown("resolved_by", maybe(uuid("the run that repeats it")), lambda run: run.resolved_by),
    Shown("created_at", time(), lambda run: moment(run.created_at)),
    Shown("run_at", time("not before"), lambda run: moment(run.run_at)),
    Shown("deadline", time("it ends by then"), lambda run: moment(run.deadline)),
    Shown("started_at", maybe(time()), lambda run: moment(run.started_at)),
    Shown("finished_at", maybe(time()), lambda run: moment(run.finished_at)),
    Shown("cancel_requested_at", maybe(time()), lambda run: moment(run.cancel_requested_at)),
    Shown("error", ERROR, lambda run: run.error),
    Shown("links", _LINKS, _links),
)

RUN: View[Run] = View("Run", "A run, without its input and result", _COMMON)
FULL_RUN: View[Run] = View(
    "FullRun",
    "A run with its input and result",
    (
        *_COMMON,
        Shown("input", {"description": "as it was submitted"}, lambda run: run.input),
        Shown("result", {"description": "what the agent returned"}, lambda run: run.result),
    ),
)
MESSAGE: View[Message] = View(
    "Message",
    "A line of a session's conversation",
    (
        Shown("message_id", whole("grows within a session"), lambda line: line.message_id),
        Shown("session_id", uuid(), lambda line: line.session_id),
        Shown("run_id", uuid("the run that it belongs to"), lambda line: line.run_id),
        Shown("role", text(enum=["user", "assistant", "digest"]), lambda line: line.role),
        Shown(
            "payload",
            {"type": "object", "description": "`content` and, from agents, what goes with it"},
            lambda line: line.payload,
        ),
        Shown("created_at", time(), lambda line: moment(line.created_at)),
    ),
)
AGENT: View[AgentInfo] = View(
    "Agent",
    "An agent that a worker has registered",
    (
        Shown("name", text(), lambda agent: agent.name),
        Shown("version", text(), lambda agent: agent.version),
        Shown("queue", text("where its runs go"), lambda agent: agent.queue),
        Shown("description", text(), lambda agent: agent.description),
        Shown(
            "input_schema",
            {"type": ["object", "null"], "description": "JSON Schema of a run's input"},
            lambda agent: agent.input_schema,
        ),
    ),
)


def page_schema(item: str) -> Schema:
    """A page of a list."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "data": {"type": "array", "items": ref(item)},
            "next_cursor": {"type": ["string", "null"], "description": "null on the last page"},
        },
        "required": ["data", "next_cursor"],
    }


def list_schema(item: str) -> Schema:
    """A list that is always whole."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {"data": {"type": "array", "items": ref(item)}},
        "required": ["data"],
    }
