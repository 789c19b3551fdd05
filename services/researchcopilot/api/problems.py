"""What we refuse, and how we say so: RFC 9457 problem documents.

Each code is a stable word that a program may rely on; `PROBLEMS` gives its status and title and
is published in the OpenAPI document. `errors` names every field that is wrong, not only the
first. The text of an unexpected exception never reaches a client: it is logged with the request
id that the client is given.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from researchcopilot.api.render import dump
from researchcopilot.core.errors import BadInput, Busy, TooLarge, Unavailable
from researchcopilot.core.faults import Fault as Fault
from researchcopilot.core.faults import common_code, summary
from researchcopilot.core.text import clean_text

TYPE_PREFIX = "urn:researchcopilot:problem:"
MAX_FAULTS = 50

# code → (status, title)
PROBLEMS: dict[str, tuple[int, str]] = {
    "bad_json": (400, "The body is not JSON"),
    "unauthorized": (401, "A valid API key is needed"),
    "not_found": (404, "There is no such thing here"),
    "method_not_allowed": (405, "The method does not exist here"),
    "body_timeout": (408, "The body did not arrive in time"),
    "conflict": (409, "The state does not allow this"),
    "session_busy": (409, "The session is busy with another run"),
    "too_large": (413, "The request is larger than the limit"),
    "unsupported_media_type": (415, "The body is of a type that is not taken here"),
    "invalid": (422, "The request is refused"),
    "bad_cursor": (422, "The cursor is not one of ours"),
    "idempotency_mismatch": (422, "The Idempotency-Key belongs to another request"),
    "unknown_agent": (422, "No worker has registered this agent"),
    "unknown_queue": (422, "No worker serves this queue"),
    "internal": (500, "Something broke here"),
    "busy": (503, "Too many requests are waiting"),
    "unavailable": (503, "The database does not answer"),
}


class Problem(Exception):
    """A request that ends with a problem document."""

    def __init__(
        self,
        code: str,
        detail: str,
        faults: Sequence[Fault] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.status, self.title = PROBLEMS[code]
        self.detail = detail
        self.faults = faults
        self.headers = dict(headers or {})


class ClientGone(Exception):
    """The client hung up: nobody is there to answer."""


def refuse(faults: Sequence[Fault]) -> Problem:
    """The problem of one or more faults. Too large alone is 413, all the rest 422."""
    code = common_code(faults)
    return Problem(code if code in PROBLEMS else "invalid", summary(faults, ", see errors"), faults)


def of_error(error: BaseException) -> Problem:
    """The problem that an error of the house is for a client."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, BadInput):
        code = error.code if error.code in PROBLEMS else _family(error)
        fault = Fault(error.field, error.message, error.code) if error.field else None
        return Problem(code, error.message, [fault] if fault else [])
    if isinstance(error, Busy):
        return Problem("busy", error.message, headers={"Retry-After": "1"})
    if isinstance(error, Unavailable):
        return Problem(
            "unavailable",
            "The database does not answer. Nothing was changed, or it can safely be sent again "
            "with the same Idempotency-Key.",
            headers={"Retry-After": "2"},
        )
    return Problem(
        "internal",
        "An unexpected error ended this request. The log of the api has it under request_id.",
    )


def _family(error: BadInput) -> str:
    return "too_large" if isinstance(error, TooLarge) else type(error).code


def respond(problem: Problem, request_id: str) -> Response:
    """The document. Text from outside is cleaned and cut: a field name can be a megabyte."""
    body: dict[str, Any] = {
        "type": TYPE_PREFIX + problem.code,
        "title": problem.title,
        "status": problem.status,
        "detail": clean_text(problem.detail, 2000),
        "code": problem.code,
        "request_id": request_id,
        "errors": [
            {
                "field": clean_text(fault.field, 200),
                "message": clean_text(fault.message, 1000),
                "code": fault.code,
            }
            for fault in problem.faults[:MAX_FAULTS]
        ],
    }
    return Response(dump(body), problem.status, problem.headers, "application/problem+json")
