"""The API server: credentials, sessions, and all that we ask and write ourselves; kopf only lists
and watches.

In a cluster the token is that of the service account; its file is read again each minute, since a
kubelet replaces it long before it ends. Elsewhere it is the kubeconfig's current context. A call
has one time-out and no retries: who calls knows whether it matters.
"""

import json
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import aiohttp
import kopf

from researchcopilot import __version__
from researchcopilot.core.errors import ConfigError, ResearchCopilotError, Unavailable
from researchcopilot.operator.watches import Watches

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_S = 60.0
CALL_S = 10.0
PAGE = 500
DEEP = 12_000  # an API server takes 10,000 levels
CUT = 300  # characters of an answer that stand in an error
MERGE = "application/merge-patch+json"
Credentials = Callable[[], kopf.ConnectionInfo]


def read_deep() -> None:
    """Let this process read JSON that is nested as deep as an API server takes it. Else one object
    that is nested deeper could not be read, nor any list that it stands on."""
    sys.setrecursionlimit(max(DEEP, sys.getrecursionlimit()))


class KubeRefused(ResearchCopilotError):
    """The API server refused a call."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def credentials() -> kopf.ConnectionInfo:
    """Who we are and where the API server is. Raises ConfigError."""
    settings = kopf.OperatorSettings()
    try:
        found = kopf.login_with_service_account(settings=settings)
        found = found or kopf.login_with_kubeconfig(settings=settings)
    except Exception as error:  # a file that is not there, no YAML, no such context: one of many
        raise ConfigError(
            f"The credentials for the API server cannot be used: {type(error).__name__}: {error}. "
            "Mend the file that KUBECONFIG names, or the service account's token."
        ) from error
    if found is None:
        raise ConfigError(
            "There is no API server to talk to: this is no Pod with a service account's token, and "
            "KUBECONFIG names no file. The operator runs in a cluster; elsewhere set KUBECONFIG."
        )
    return found


class Token:
    """Puts the service account's token of the moment on each request."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = ""
        self._read_at = float("-inf")

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if time.monotonic() - self._read_at > TOKEN_S:
            self._token = self._path.read_text(encoding="utf-8").strip()
            self._read_at = time.monotonic()
        request.headers["Authorization"] = f"Bearer {self._token}"
        return await handler(request)


def open_session(info: kopf.ConnectionInfo, watches: Watches | None = None) -> kopf.AiohttpSession:
    """A session of its own for whoever asks, in the form in which kopf takes it."""
    in_cluster = ACCOUNT / "token"
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=_as_clients_of_kubernetes_do(info)),
        headers={**info.as_http_headers(), "User-Agent": f"researchcopilot-operator/{__version__}"},
        middlewares=(Token(in_cluster),) if in_cluster.exists() else (),
        trace_configs=[watches.trace()] if watches else None,
    )
    return kopf.AiohttpSession(
        aiohttp_session=session, server=info.server, default_namespace=info.default_namespace
    )


def _as_clients_of_kubernetes_do(info: kopf.ConnectionInfo) -> ssl.SSLContext:
    """Python from 3.13 on wants more of a certificate authority than RFC 5280 is held to by those
    that clusters make for themselves (a key usage, an authority key identifier), and than kubectl
    and the kubelet want. Chain, name and time are verified as ever."""
    context = info.as_ssl_context()
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


class Kube:
    """Calls of the API server. Raises KubeRefused (it says no), Unavailable (it says nothing)."""

    def __init__(self, find: Credentials) -> None:
        self._find = find
        self._opened: kopf.AiohttpSession | None = None
        self._clock = datetime.now(UTC), time.monotonic()

    def now(self) -> datetime:
        """The time by the API server's clock, going by its last answer."""
        then, at = self._clock
        return then + timedelta(seconds=time.monotonic() - at)

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.aiohttp_session.close()
            self._opened = None

    async def pages(self, path: str, **query: str) -> AsyncIterator[list[dict[str, Any]]]:
        """The items of a list, a page at a time. What is not on a list is taken for gone, so that
        only a list is taken for one. Raises Unavailable for any other answer, too."""
        query.setdefault("limit", str(PAGE))
        while True:
            found = await self.call("GET", path, query=query)
            if not str(found.get("kind")).endswith("List") or "items" not in found:
                raise _no_answer("GET", path, f"a list was asked for, and this is none: {found}")
            yield found["items"] or []
            token = (found.get("metadata") or {}).get("continue")
            if not token:
                return
            query["continue"] = token

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self.call("POST", path, body=body)

    async def patch(self, path: str, body: Mapping[str, Any], **query: str) -> dict[str, Any]:
        """A merge patch: null removes a key."""
        return await self.call("PATCH", path, query=query, body=body)

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        opened = self._session()
        try:
            async with opened.aiohttp_session.request(
                method,
                opened.server.rstrip("/") + path,
                params=query or {},
                json=body,
                headers={"Content-Type": MERGE} if method == "PATCH" else None,
                timeout=aiohttp.ClientTimeout(total=CALL_S),
            ) as response:
                if date := moment_of(response.headers.get("Date")):
                    self._clock = date, time.monotonic()
                return await _answer(method, path, response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            text = str(error) or type(error).__name__
            raise Unavailable(f"The API server does not answer {method} {path}: {text}") from error

    def _session(self) -> kopf.AiohttpSession:
        if self._opened is None:
            self._opened = open_session(self._find())
        return self._opened


def moment_of(date: str | None) -> datetime | None:
    """What a Date header says; None if that is no time with its zone."""
    try:
        found = parsedate_to_datetime(date or "")
    except ValueError:
        return None
    return found if found.tzinfo else None


def _no_answer(method: str, path: str, why: str) -> Unavailable:
    return Unavailable(
        f"What answers {method} {path} is no API server, or not the whole of it (look at the "
        f"address, and at proxies before it): {why[:CUT]}"
    )


async def _answer(method: str, path: str, response: aiohttp.ClientResponse) -> dict[str, Any]:
    text = await response.text(errors="replace")
    if response.status < 300:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _no_answer(method, path, f"{error}: {text}") from error
        if not isinstance(found, dict):
            raise _no_answer(method, path, f"no JSON object: {text}")
        return found
    text = text[:CUT]
    if response.status >= 500 or response.status == 429:
        raise Unavailable(f"The API server cannot answer {method} {path} now: {text}")
    raise KubeRefused(
        f"The API server refuses {method} {path} with {response.status}: {text}", response.status
    )
