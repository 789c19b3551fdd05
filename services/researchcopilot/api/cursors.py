"""Cursors: where a page ended, opaque to clients. Keyset: page 1,000 costs what page 1 does.

A cursor holds a position and nothing else; what it may see is decided by the key of each request.
"""

import base64
import json
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlencode

from researchcopilot.api.problems import Fault, Problem

T = TypeVar("T")


def encode(kind: str, *position: Any) -> str:
    text = json.dumps([kind, *position], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode(kind: str, cursor: str | None, read: Callable[[list[Any]], T]) -> T | None:
    """The position, made by `read` from what `encode` was given. Raises a `bad_cursor` problem."""
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        found = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        if isinstance(found, list) and found[:1] == [kind]:
            return read(found[1:])
    except (ValueError, TypeError, IndexError, RecursionError):
        pass
    message = "is not a cursor of this list; send next_cursor of the page before as it is"
    raise Problem("bad_cursor", f"cursor {message}.", [Fault("cursor", message, "bad_cursor")])


def next_link(path: str, query: dict[str, str], cursor: str) -> str:
    """RFC 8288."""
    return f'<{path}?{urlencode({**query, "cursor": cursor})}>; rel="next"'
