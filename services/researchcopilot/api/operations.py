"""An operation: one method of one path, with everything that is known about it.

The same record routes a request, validates its parameters and body, and becomes its paragraph in
`/openapi.json`. `Call` is one request on its way through; `Services` is what the process shares.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from starlette.responses import Response
from starlette.types import Receive, Scope

from researchcopilot.agents.new_runs import Door
from researchcopilot.api import bodies
from researchcopilot.api.problems import Fault, Problem, refuse
from researchcopilot.core.fields import Body
from researchcopilot.core.schemas import Kind, Schema

if TYPE_CHECKING:  # the rooms below know operations; this one only names them
    from researchcopilot.api.auth import Keys
    from researchcopilot.api.watch import Watcher
from researchcopilot.core.settings import ApiSettings
from researchcopilot.storage.db import Database
from researchcopilot.storage.runs import RunReader
from researchcopilot.storage.submit import Submitter


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a path or a query."""

    name: str
    kind: Kind
    doc: str
    default: Any = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A success as clients see it. `schema` is the name of a component, or None without a body;
    `also` are other media types that it can have, with their schemas."""

    doc: str
    schema: str | None = None
    headers: tuple[str, ...] = ()
    also: Mapping[str, Schema] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """`path` is the template; `aliases` are other paths of the same thing."""

    method: str
    path: str
    handler: Callable[["Call"], Awaitable[Response]]
    doc: str
    answers: Mapping[int, Answer]
    body: Body | None = None
    body_needed: bool = True
    body_types: Mapping[str, Schema] = field(default_factory=dict)
    params: tuple[Param, ...] = ()
    query: tuple[Param, ...] = ()
    headers: tuple[str, ...] = ()
    problems: tuple[int, ...] = ()
    key: bool = True
    aliases: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Unique: the function behind it."""
        return getattr(self.handler, "__name__", "").strip("_")


@dataclass(frozen=True, slots=True)
class Services:
    """What the requests of one process share."""

    db: Database
    submitter: Submitter
    read_run: RunReader
    settings: ApiSettings
    keys: "Keys"
    door: Door
    watcher: "Watcher"
    openapi: bytes


@dataclass(slots=True)
class Call:
    """One request. `workspace_id` is that of its key; 0 where no key is needed."""

    services: Services
    operation: Operation
    scope: Scope
    receive: Receive
    workspace_id: int = 0
    path: dict[str, Any] = field(default_factory=dict)
    query: dict[str, Any] = field(default_factory=dict)
    said: Any = None  # the body as it came, parsed

    def header(self, name: bytes) -> str | None:
        return bodies.header(self.scope, name)

    async def json(self) -> dict[str, Any]:
        """The body's fields, checked by the operation's table."""
        assert self.operation.body is not None
        bodies.media_type(self.scope, "application/json")
        data = await bodies.read(self.scope, self.receive, self.services.settings.max_body_bytes)
        if len(data) > bodies.SLOW_BYTES:  # nobody else waits for it
            return await asyncio.to_thread(self._understand, self.operation.body, data)
        return self._understand(self.operation.body, data)

    def _understand(self, body: Body, data: bytes) -> dict[str, Any]:
        faults: list[Fault] = []
        self.said = bodies.parse(data)
        fields: dict[str, Any] = body.check(self.said, "$", faults)
        if faults:
            raise refuse(faults)
        return fields

    async def json_or_nothing(self) -> dict[str, Any]:
        """The same where a request without a body means every default."""
        empty = bodies.header(self.scope, b"content-length") in (None, "0")
        if empty and bodies.header(self.scope, b"transfer-encoding") is None:
            assert self.operation.body is not None
            defaults: dict[str, Any] = self.operation.body.check({}, "$", [])
            return defaults
        return await self.json()

    def read_parameters(self, path: Mapping[str, str]) -> None:
        """Check what stands in the URL."""
        faults: list[Fault] = []
        for param in self.operation.params:
            self.path[param.name] = param.kind.from_text(path[param.name], param.name, faults)
        if self.scope["query_string"] or self.operation.query:
            self.query = read_query(self.operation.query, self.scope["query_string"], faults)
        if faults:
            raise refuse(faults)


def read_query(params: tuple[Param, ...], raw: bytes, faults: list[Fault]) -> dict[str, Any]:
    """Parameters by name; unknown, repeated and empty ones are faults, never ignored."""
    known = {param.name: param for param in params}
    found = {param.name: param.default for param in params}
    seen: set[str] = set()
    for name, text in _pairs(raw):
        if name not in known:
            words = f"parameters are {', '.join(known)}" if known else "there are none"
            faults.append(Fault(name, f"is not a parameter here; {words}", "unknown_parameter"))
        elif name in seen:
            faults.append(Fault(name, "must not be given twice"))
        else:
            found[name] = known[name].kind.from_text(text, name, faults)
        seen.add(name)
    return found


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=50,
        )
    except ValueError:
        raise Problem(
            "invalid", "The query of the URL is not UTF-8, or has more than 50 parameters."
        ) from None
