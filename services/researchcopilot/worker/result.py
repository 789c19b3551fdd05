"""What an agent may return, and what is kept of what it raises.

Everything here ends in text that Postgres takes: cleaned of NUL and lone surrogates, within its
limit. The failure path must not fail: whatever an exception's __str__ does, there is a message.
"""

import re
import traceback
from typing import Any

from researchcopilot.core.errors import BadResult, ResearchCopilotError
from researchcopilot.core.text import clean_json, clean_text, dumps, walk

MESSAGE_LIMIT = 2_000
TRACE_LIMIT = 8_000
_UNCLEAN = re.compile("\\\\u0000|[\ud800-\udfff]")
_JSON = (str, int, float, bool, type(None), dict, list, tuple)


def encode_result(result: Any, limit: int) -> str:
    """The result as clean JSON text. Raises BadResult naming what is wrong and where."""
    try:
        text = dumps(result)
        if _UNCLEAN.search(text):
            text = dumps(clean_json(result))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadResult(_not_json(result, error)) from None
    size = len(text.encode())
    if size > limit:
        raise BadResult(
            f"The result is {_bytes(size)} of JSON; the limit is {_bytes(limit)} "
            "(RC_MAX_RESULT_BYTES). Store what is large elsewhere and return where it is."
        )
    return text


def _not_json(result: Any, error: Exception) -> str:
    if isinstance(error, RecursionError) or "Circular" in str(error):
        return "The result is nested without end or too deeply; return a flat JSON value."
    for path, node in walk(result):
        if not isinstance(node, _JSON):
            return f"The result is not JSON: {path} is a {type(node).__name__}. Convert it first."
        if isinstance(node, float) and (node != node or abs(node) == float("inf")):
            return f"The result is not JSON: {path} is {node}. Return null or a string instead."
    return f"The result is not JSON: {error}."


def _bytes(size: int) -> str:
    return f"{size / 1_048_576:.1f} MB" if size >= 1_048_576 else f"{size / 1024:.1f} kB"


def describe_error(error: BaseException) -> dict[str, str]:
    """{"type", "message", "trace"} of an error, cleaned and cut."""
    message = _message(error)
    described = {
        "type": _type(error),
        "message": clean_text(message, MESSAGE_LIMIT),
    }
    if not isinstance(error, ResearchCopilotError):
        described["trace"] = clean_text(_trace(error), TRACE_LIMIT)
    return described


def _type(error: BaseException) -> str:
    kind = type(error)
    if isinstance(error, ResearchCopilotError):
        return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
    return clean_text(f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."), 200)


def _message(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:
        return f"{type(error).__name__} (its message cannot be shown)"


def _trace(error: BaseException) -> str:
    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        text = "".join(lines)
    except Exception:
        text = "".join(traceback.format_tb(error.__traceback__))
    return text[-TRACE_LIMIT:]
