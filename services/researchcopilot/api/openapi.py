"""`/openapi.json` (3.1), made from the tables that route, validate and render.

Nothing is written here that is known elsewhere; tests compare it with the routes and hold the
answers of a running server against it.
"""

from collections.abc import Iterable
from typing import Any

from researchcopilot import __version__
from researchcopilot.agents import new_runs, new_schedules
from researchcopilot.api import (
    actions,
    dead_letters,
    documents,
    memories,
    reports,
    schedule_bodies,
    schedule_views,
    views,
)
from researchcopilot.api.operations import Answer, Operation, Param
from researchcopilot.api.problems import PROBLEMS, TYPE_PREFIX
from researchcopilot.core.schemas import Schema

HEADERS: dict[str, tuple[str, Schema]] = {
    "Location": ("where the new thing is", {"type": "string"}),
    "Retry-After": ("seconds until it is worth to ask again", {"type": "integer"}),
    "Idempotent-Replayed": ("true: an earlier request had done it", {"const": "true"}),
    "ETag": ("for If-None-Match", {"type": "string"}),
    "Link": ('rel="next", where there is a next page', {"type": "string"}),
    "WWW-Authenticate": ("how to authenticate", {"type": "string"}),
    "Vary": ("which request headers decide the form of the answer", {"type": "string"}),
    "Allow": ("the methods that there are", {"type": "string"}),
}
REQUEST_HEADERS: dict[str, tuple[str, Schema]] = {
    "Idempotency-Key": (
        "1 to 255 visible ASCII characters, bare or quoted. The same key and body make the same "
        "runs, once; another body is a 422",
        {"type": "string", "minLength": 1},
    ),
    "If-None-Match": ("the ETag of the answer that you have", {"type": "string"}),
}
_PROBLEM: Schema = {
    "type": "object",
    "description": "RFC 9457",
    "additionalProperties": False,
    "properties": {
        "type": {"type": "string", "format": "uri", "examples": [TYPE_PREFIX + "invalid"]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "enum": list(PROBLEMS)},
        "request_id": {"type": "string", "description": "also in the header X-Request-Id"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "field": {
                        "type": "string",
                        "description": "a JSON path ($.input), a parameter or a header",
                    },
                    "message": {"type": "string"},
                    "code": {"type": "string"},
                },
                "required": ["field", "message", "code"],
            },
        },
    },
    "required": ["type", "title", "status", "detail", "code", "request_id", "errors"],
}
_WELCOME: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "version": {"type": "string"},
        "links": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["name", "version", "links"],
}

_SHOWN: tuple[views.View[Any], ...] = (
    views.RUN,
    views.FULL_RUN,
    views.MESSAGE,
    views.AGENT,
    documents.DOCUMENT,
    documents.FULL_DOCUMENT,
    documents.STORED,
    actions.CLAIM,
    dead_letters.GROUP,
    schedule_views.SCHEDULE,
    schedule_views.FULL_SCHEDULE,
    schedule_views.TICK,
    reports.REPORT,
    reports.FULL_REPORT,
    memories.MEMORY,
)


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    """The OpenAPI document of these operations."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        for number, path in enumerate((operation.path, *operation.aliases)):
            paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, number)
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {
            "title": "ResearchCopilot",
            "version": __version__,
            "description": "Runs of research agents: submitted, durable, ended once. "
            "Errors are RFC 9457 problem documents. HEAD is there wherever GET is.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key, `rc_…`, made by `researchcopilot keys create`",
                }
            },
            "schemas": schemas(),
        },
    }


def schemas() -> dict[str, Schema]:
    """Every named schema."""
    bodies = (
        new_runs.NEW_RUN,
        new_runs.NEW_RUN_IN_SESSION,
        new_runs.NEW_RUNS,
        documents.NEW_DOCUMENT,
        actions.REPLAY,
        dead_letters.REPLAY_MANY,
        dead_letters.DISCARD_MANY,
        new_schedules.NEW_SCHEDULE,
        schedule_bodies.SCHEDULE_CHANGES,
        schedule_bodies.PREVIEW,
    )
    return {
        **{body.name: body.schema() for body in bodies},
        **{view.name: view.schema() for view in _SHOWN},
        "Runs": views.list_schema("Run"),
        "AgentList": views.list_schema("Agent"),
        "ClaimList": views.list_schema("Claim"),
        "DeadLetterList": dead_letters.LIST_SCHEMA,
        "DeadLettersDealt": dead_letters.DEALT_SCHEMA,
        "RunPage": views.page_schema("Run"),
        "MessagePage": views.page_schema("Message"),
        "DocumentPage": views.page_schema("Document"),
        "ReportPage": views.page_schema("Report"),
        "MemoryPage": views.page_schema("Memory"),
        "SchedulePage": views.page_schema("Schedule"),
        "TickPage": views.page_schema("Tick"),
        "TicksToCome": schedule_views.TICKS_TO_COME,
        "Problem": _PROBLEM,
        "Welcome": _WELCOME,
        "OpenApi": {"type": "object", "required": ["openapi", "paths"]},
    }


def _operation(operation: Operation, alias: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.name + (f"_alias{alias}" if alias else ""),
        "summary": operation.doc,
        "parameters": [
            *(_param(param, "path") for param in operation.params),
            *(_param(param, "query") for param in operation.query),
            *(_request_header(name) for name in operation.headers),
        ],
        "responses": _responses(operation),
    }
    if operation.body is not None:
        found["requestBody"] = {
            "required": operation.body_needed,
            "content": {kind: {"schema": schema} for kind, schema in operation.body_types.items()},
        }
    if not operation.key:
        found["security"] = []
    return found


def _param(param: Param, where: str) -> dict[str, Any]:
    schema = param.kind.schema()
    if param.default is not None:
        schema = {**schema, "default": param.default}
    return {
        "name": param.name,
        "in": where,
        "required": where == "path",
        "description": param.doc,
        "schema": schema,
    }


def _request_header(name: str) -> dict[str, Any]:
    doc, schema = REQUEST_HEADERS[name]
    return {"name": name, "in": "header", "required": False, "description": doc, "schema": schema}


def _responses(operation: Operation) -> dict[str, Any]:
    refused = {*operation.problems, 500, *((401,) if operation.key else ())}
    return {
        **{str(status): _answer(answer) for status, answer in operation.answers.items()},
        **{str(status): _problem(status) for status in sorted(refused)},
    }


def _answer(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = {"description": answer.doc}
    if answer.schema:
        kinds = {"application/json": views.ref(answer.schema), **answer.also}
        found["content"] = {kind: {"schema": schema} for kind, schema in kinds.items()}
    if answer.headers:
        found["headers"] = {name: _header(name) for name in answer.headers}
    return found


def _header(name: str) -> dict[str, Any]:
    doc, schema = HEADERS[name]
    return {"description": doc, "schema": schema}


def _problem(status: int) -> dict[str, Any]:
    codes = [code for code, (number, _) in PROBLEMS.items() if number == status]
    headers = {401: ("WWW-Authenticate",), 503: ("Retry-After",)}.get(status, ())
    return {
        "description": f"Refused: {', '.join(codes)}",
        "content": {"application/problem+json": {"schema": views.ref("Problem")}},
        **({"headers": {name: _header(name) for name in headers}} if headers else {}),
    }
