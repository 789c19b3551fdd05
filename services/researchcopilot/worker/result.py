"""What an agent may return, and what is kept of what it raises.

Everything here ends in text that Postgres takes: cleaned of NUL and lone surrogates, within its
limit. The failure path must not fail: whatever an exception's __str__ does, there is a message.
"""

import inspect
import re
import traceback
from typing import Any

from researchcopilot.core.errors import BadResult, ResearchCopilotError
from researchcopilot.core.text import clean_json, clean_text, dumps, walk

STEP_LIMIT = 1_048_576
EVENT_LIMIT = 65_536
MESSAGE_LIMIT = 2_000
TRACE_LIMIT = 8_000
DEPTH_LIMIT = 100  # whoever reads a result back has a stack of his own below it
_UNCLEAN = re.compile("\\\\u0000|[\ud800-\udfff]")
_JSON = (str, int, float, bool, type(None), dict, list, tuple)
_KEYS = (str, int, float, bool, type(None))
_ADVICE = {
    "set": "make it a list",
    "frozenset": "make it a list",
    "bytes": "decode it",
    "bytearray": "decode it",
    "datetime": "give its isoformat()",
}


def encode_result(result: Any, limit: int, what: str = "result") -> str:
    """The result as clean JSON text. Raises BadResult naming what is wrong and where."""
    try:
        text = dumps(result)
        if _UNCLEAN.search(text):
            text = dumps(clean_json(result))
    except Exception as error:  # the agent's own objects are asked for their items
        raise BadResult(_not_json(result, error, what)) from None
    if text.count("[") + text.count("{") > DEPTH_LIMIT and _too_deep(result):
        raise BadResult(_too_deep_text(what))
    size = len(text.encode())
    if size > limit:
        raise BadResult(
            f"The {what} is {_bytes(size)} of JSON; the limit is {_bytes(limit)}"
            f"{' (RC_MAX_RESULT_BYTES)' if what == 'result' else ''}. "
            "Store what is large elsewhere and return where it is."
        )
    return text


def _not_json(result: Any, error: Exception, what: str) -> str:
    words = _message(error)
    if isinstance(error, RecursionError) or words.startswith("Circular"):
        return _too_deep_text(what)
    try:
        found = _first_fault(result)
    except Exception:
        found = None
    return f"The {what} is not JSON: {found or f'{type(error).__name__} at $ or below it: {words}'}"


def _first_fault(result: Any) -> str | None:
    """What stands where JSON has no place for it. A value that contains itself is no trouble."""
    for path, node in walk(result):
        if not isinstance(node, _JSON):
            return f"{path} is {_described(node)}"
        if isinstance(node, float) and (node != node or abs(node) == float("inf")):
            return f"{path} is {node}; give null or a string instead"
        if isinstance(node, dict):
            for key in node:
                if not isinstance(key, _KEYS):
                    return f"{path} has a key that is a {type(key).__name__}; make it a string"
    return None


def _described(node: Any) -> str:
    name = type(node).__name__
    if inspect.isawaitable(node):
        if inspect.iscoroutine(node):
            node.close()
        return f"a {name} that nobody has awaited; make the agent an `async def`, or await it"
    advice = _ADVICE.get(name, "convert it to dicts, lists, strings and numbers")
    return f"a value of type {name}; {advice}"


def _too_deep(result: Any) -> bool:
    """Looked at level by level: recursion is what there is too much of. Each node once a level."""
    level = {id(result): result}
    for _ in range(DEPTH_LIMIT + 1):
        level = {
            id(item): item
            for node in level.values()
            if isinstance(node, dict | list | tuple)
            for item in (node.values() if isinstance(node, dict) else node)
        }
    return bool(level)


def _too_deep_text(what: str) -> str:
    return (
        f"The {what} is nested deeper than {DEPTH_LIMIT} levels, or contains itself; "
        "make it flatter, with ids instead of references."
    )


def _bytes(size: int) -> str:
    return f"{size / 1_048_576:.1f} MB" if size >= 1_048_576 else f"{size / 1024:.1f} kB"


# Errors


def only_one(error: BaseException) -> BaseException:
    """What a task group wraps around a single error is taken away, so that it is what it was."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def describe_error(error: BaseException, trace: str = "") -> dict[str, str]:
    """{"type", "message", "trace"} of an error, cleaned and cut. Our own errors say all in their
    message: they have a trace only if one is given or if they have a cause."""
    described = {
        "type": _type(error),
        "message": clean_text(_message(error), MESSAGE_LIMIT),
    }
    if not trace and (not isinstance(error, ResearchCopilotError) or error.__cause__ is not None):
        trace = _trace(error)
    if trace:
        described["trace"] = clean_text(trace[-TRACE_LIMIT:], TRACE_LIMIT)
    return described


def _type(error: BaseException) -> str:
    kind = type(error)
    if isinstance(error, ResearchCopilotError):
        return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
    return clean_text(f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."), 200)


def _message(error: BaseException) -> str:
    try:
        text = str(error) or type(error).__name__
        if isinstance(error, BaseExceptionGroup):
            text += ": " + "; ".join(
                f"{type(member).__name__}: {_message(member)}" for member in error.exceptions[:10]
            )
    except BaseException:  # whatever it is that its __str__ does
        return f"{type(error).__name__} (its message cannot be shown)"
    return text


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except BaseException:
        return "".join(traceback.format_tb(error.__traceback__))
