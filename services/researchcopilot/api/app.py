"""The app: finds the operation, asks whose key it is, checks, calls, answers.

Plain ASGI in one pass and no tower of middleware: two processes accept thousands of runs a
second, and what stands here is paid for each. Every way out is an answer: what a handler raises
becomes a problem document, and an unexpected exception is logged with the request id.
"""

import logging
import os
import re
import time
from collections.abc import Iterable, Mapping

from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from researchcopilot.api import metrics
from researchcopilot.api.operations import Call, Operation, Services
from researchcopilot.api.problems import ClientGone, Problem, of_error, respond

log = logging.getLogger(__name__)
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
UNKNOWN = "unknown"


class Path:
    """One path template and the operations on it, by method. HEAD is there where GET is."""

    def __init__(self, template: str) -> None:
        self.template = template
        self.pattern = compile_path(template)[0]
        self.methods: dict[str, Operation] = {}

    def add(self, operation: Operation) -> None:
        self.methods[operation.method] = operation
        if operation.method == "GET":
            self.methods["HEAD"] = operation

    def operation(self, method: str) -> Operation:
        found = self.methods.get(method)
        if found is None:
            allowed = ", ".join(sorted(self.methods))
            raise Problem(
                "method_not_allowed",
                f"{method[:20]} does not exist here; {allowed} do.",
                headers={"Allow": allowed},
            )
        return found


def paths_of(operations: Iterable[Operation]) -> list[Path]:
    paths: dict[str, Path] = {}
    for operation in operations:
        for template in (operation.path, *operation.aliases):
            paths.setdefault(template, Path(template)).add(operation)
    return list(paths.values())


class App:
    def __init__(self, services: Services, operations: Iterable[Operation]) -> None:
        self._services = services
        self._paths = paths_of(operations)
        # Most requests go to a path without parameters: one look instead of a row of patterns.
        self._fixed = {path.template: path for path in self._paths if "{" not in path.template}
        self._patterns = [path for path in self._paths if "{" in path.template]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        request_id = _request_id(scope)
        route = UNKNOWN
        try:
            path, found = self._find(scope["path"])
            route = path.template
            response = await self._answer(path.operation(scope["method"]), found, scope, receive)
        except ClientGone:
            self._record(scope, route, metrics.HUNG_UP, started, request_id)
            return
        except Exception as error:
            response = _problem(error, request_id)
        response.raw_headers.append((b"x-request-id", request_id.encode()))
        await response(scope, receive, send)
        self._record(scope, route, response.status_code, started, request_id)

    def _find(self, path: str) -> tuple[Path, Mapping[str, str]]:
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed, {}
        for pattern in self._patterns:
            if match := pattern.pattern.match(path):
                return pattern, match.groupdict()
        raise Problem("not_found", "There is nothing at this path; see /openapi.json.")

    async def _answer(
        self, operation: Operation, found: Mapping[str, str], scope: Scope, receive: Receive
    ) -> Response:
        call = Call(self._services, operation, scope, receive)
        if operation.key:
            call.workspace_id = await self._services.keys.workspace_of(scope)
        call.read_parameters(found)
        return await operation.handler(call)

    @staticmethod
    def _record(scope: Scope, route: str, status: int, started: float, request_id: str) -> None:
        seconds = time.perf_counter() - started
        metrics.record(scope["method"], route, scope["path"], status, seconds, request_id)


def _request_id(scope: Scope) -> str:
    """The caller's, if it is a sensible one; else ours."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            given: str = value.decode()
            return given
    return os.urandom(12).hex()


def _problem(error: Exception, request_id: str) -> Response:
    problem = of_error(error)
    if problem.status >= 500:
        unexpected = problem.code == "internal"
        log.log(
            logging.ERROR if unexpected else logging.WARNING,
            "a request failed: %s",
            error,
            extra={"request_id": request_id},
            exc_info=error if unexpected else None,
        )
    return respond(problem, request_id)
