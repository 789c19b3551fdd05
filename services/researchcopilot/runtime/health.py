"""/livez, /readyz and /metrics on a port of their own, served from a thread.

From a thread, so that they answer also while the event loop is blocked: a blocked loop is one of
the things that /livez has to tell.
"""

import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    disable_created_metrics,
    generate_latest,
)

from researchcopilot.core.errors import ConfigError
from researchcopilot.runtime.listen import bind

log = logging.getLogger(__name__)

# A check returns None when all is well, else a sentence that says what is wrong.
Check = Callable[[], str | None]
# A page answers (status, content type, body) for a path of its own, None for any other.
Page = Callable[[str], tuple[int, str, bytes] | None]


# A time of birth beside each counter and histogram: a third more series that nobody looks at.
disable_created_metrics()  # type: ignore[no-untyped-call]


class _Server(ThreadingHTTPServer):
    """On a socket that is bound already, of whichever family."""

    def __init__(self, bound: socket.socket, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(bound.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.server_activate()


class Health:
    """`live` and `ready` are looked at on each request; add checks before or after `start`."""

    def __init__(self) -> None:
        self.live: dict[str, Check] = {}
        self.ready: dict[str, Check] = {}
        self.pages: list[Page] = []
        self._server: ThreadingHTTPServer | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.server_address[1])

    def start(self, host: str, port: int) -> None:
        health = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, kind, body = health.answer(self.path)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                log.debug("health: " + format, *args)

        bound = bind(host, port, "RC_HEALTH")
        self._server = _Server(bound, Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def answer(self, path: str) -> tuple[int, str, bytes]:
        page = path.partition("?")[0]
        if page == "/metrics":
            return 200, CONTENT_TYPE_LATEST, generate_latest(REGISTRY)
        if page in ("/livez", "/readyz"):
            return self._checked(self.live if page == "/livez" else self.ready)
        for more in self.pages:
            if (found := more(path)) is not None:
                return found
        return 404, "text/plain", b"only /livez, /readyz and /metrics are here\n"

    @staticmethod
    def _checked(checks: Mapping[str, Check]) -> tuple[int, str, bytes]:
        found = {name: _asked(check) for name, check in dict(checks).items()}
        wrong = [f"{name}: {sentence}" for name, sentence in found.items() if sentence]
        text = "\n".join(wrong) or "ok"
        return (503 if wrong else 200), "text/plain; charset=utf-8", (text + "\n").encode()


def _asked(check: Check) -> str | None:
    try:
        return check()
    except Exception as error:
        log.exception("a check of this process failed")
        return f"this check failed: {type(error).__name__}"


def write_ports(path: str, **ports: int) -> None:
    """Tell a supervisor which ports were taken; written whole or not at all."""
    if path:
        temporary = Path(path + ".new")
        try:
            temporary.write_text(json.dumps(ports))
            temporary.replace(path)
        except OSError as error:
            raise ConfigError(
                f"RC_HEALTH_PORT_FILE={path!r} cannot be written ({error.strerror}). Give a file "
                "in a folder that is there and may be written to."
            ) from error
