"""Text and JSON from outside, made safe for Postgres.

`text` and `jsonb` refuse NUL and lone surrogates. They reach us in inputs, in results and in
error messages; a final write that fails on them would leave a run running for ever, so results
and errors are cleaned here, and inputs are refused at the door (`forbidden_in`).
"""

import json
import re
from collections.abc import Iterator
from typing import Any

_FORBIDDEN = re.compile("[\x00\ud800-\udfff]")
REPLACEMENT = "\ufffd"


def clean_text(text: str, limit: int | None = None) -> str:
    """Replace what Postgres refuses by U+FFFD; cut to `limit` characters with an ellipsis."""
    if limit is not None and len(text) > limit:
        text = text[: max(limit - 1, 0)] + "…"
    return _FORBIDDEN.sub(REPLACEMENT, text)


def clean_json(value: Any) -> Any:
    """The same value with every string, also every key, cleaned."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(str(key)): clean_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(item) for item in value]
    return value


def forbidden_in(text: str) -> str | None:
    """The name of the first character that Postgres refuses, or None."""
    found = _FORBIDDEN.search(text)
    if found is None:
        return None
    return (
        "NUL (U+0000)"
        if found.group() == "\x00"
        else f"a lone surrogate (U+{ord(found.group()):04X})"
    )


def walk(value: Any, path: str = "$") -> Iterator[tuple[str, Any]]:
    """Every node of a JSON value with its path, parents first, without recursion. A list or dict
    that stands in several places, perhaps within itself, is gone into once."""
    waiting = [(path, value)]
    seen: set[int] = set()
    while waiting:
        where, node = waiting.pop()
        yield where, node
        if isinstance(node, dict | list | tuple):
            if id(node) in seen:
                continue
            seen.add(id(node))
        if isinstance(node, dict):
            waiting.extend((f"{where}.{key}", item) for key, item in node.items())
        elif isinstance(node, list | tuple):
            waiting.extend((f"{where}[{index}]", item) for index, item in enumerate(node))


def dumps(value: Any) -> str:
    """Compact JSON; NaN and infinities are an error, since jsonb has no place for them."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
