"""How values leave: compact JSON in UTF-8, times in RFC 3339 and UTC."""

import json
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

# Made once: json.dumps() with arguments builds an encoder at each call.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def dump(value: Any) -> bytes:
    return _encode(value).encode()


def moment(value: datetime | None) -> str | None:
    """`2026-01-31T08:00:00.123456Z`."""
    if value is None:
        return None
    return value.astimezone(UTC).isoformat()[:-6] + "Z"


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(dump(value), status, headers, "application/json")
