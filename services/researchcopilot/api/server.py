"""The listening side: a socket of our own, and uvicorn without its signals and its log.

The socket is bound before anything else, so that a port that is taken is said at once; it listens
only when the api can work, so that nobody is let in before.
"""

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from researchcopilot.runtime.listen import taken

BACKLOG = 2048


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
            raise taken(host, port, "RC_API", error) from error
        self._started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Who is let go here answers in a later turn of the loop, when uvicorn has told its
        # connections that their next answer is the last: `Connection: close` goes with it.
        self._draining()
        await super().shutdown(sockets)
