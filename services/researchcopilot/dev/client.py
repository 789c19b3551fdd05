"""The api as any program would use it: HTTP and JSON, on one connection that is kept.

From the standard library: the demo shows what every client can do without a library of ours.
"""

import http.client
import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from researchcopilot.dev.processes import StackError


class ApiError(StackError):
    """The api did not answer, or not with a success."""


class Client:
    """`get` and `post` return the JSON of a success; anything else raises ApiError."""

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=40)
        self._headers = {"Authorization": f"Bearer {key}"}

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def get(self, path: str) -> Any:
        return self._send("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._send("POST", path, json.dumps(body, ensure_ascii=False).encode())

    def _send(self, method: str, path: str, body: bytes | None) -> Any:
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            self._connection.request(method, path, body, headers)
            answer = self._connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            reason = str(error) or type(error).__name__
            raise ApiError(f"The api did not answer {method} {path}: {reason}") from error
        if answer.status >= 300:
            text = data.decode("utf-8", "replace")
            raise ApiError(f"The api answered {method} {path} with {answer.status}: {text}")
        return json.loads(data)
