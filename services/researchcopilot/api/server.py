"""The listening side: a socket of our own, and uvicorn without its signals and its log.

The socket is bound before anything else, so that a port that is taken is said at once; it listens
only when the api can work, so that nobody is let in before.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from researchcopilot.core.errors import ConfigError

BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet. Raises ConfigError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(
            f"RC_API_HOST={host} cannot be used ({error.strerror}). "
            "Give an address of this machine: 127.0.0.1, or 0.0.0.0 for all."
        ) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _taken(host, port, error) from error
    return bound


def _taken(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(
        f"RC_API_PORT={port} on {host} cannot be used ({os.strerror(error.errno or 0)}). "
        "Give another port, or 0 for a free one."
    )


class Server(uvicorn.Server):
    """uvicorn, told what to do by its owner instead of by signals."""

    def __init__(
        self,
        app: Any,
        bound: socket.socket,
        *,
        grace_s: float,
        started: Callable[[], None],
        draining: Callable[[], None],
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                loop="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                # Longer than the 60 s after which load balancers drop idle connections: else one
                # of theirs is closed by us at the moment in which they use it.
                timeout_keep_alive=75,
                timeout_graceful_shutdown=max(1, int(grace_s)),
                backlog=BACKLOG,
            )
        )
        self._bound = bound
        self._started = started
        self._draining = draining

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the process: see runtime.loop.Stop."""
        yield

    async def run_until_told(self) -> None:
        """Serve until `should_exit`."""
        await self.serve([self._bound])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except OSError as error:  # two may bind one port; only one of them may listen
            host, port = self._bound.getsockname()[:2]
            raise _taken(host, port, error) from error
        self._started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Who is let go here answers in a later turn of the loop, when uvicorn has told its
        # connections that their next answer is the last: `Connection: close` goes with it.
        self._draining()
        await super().shutdown(sockets)
