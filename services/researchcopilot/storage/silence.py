"""Connections to Postgres that do not wait for ever for an answer.

A statement time-out is the server's, a TCP time-out is that of bytes which nobody has acknowledged:
neither ends the wait where somebody between us (a pooler, a proxy) acknowledges what it cannot pass
on, or where a backend hangs. One such wait would hold a whole group, and with it all that a worker
has finished. So whoever has heard nothing for longer than any statement may take closes his end; to
the caller the server is away. It never interrupts a statement that the server would still answer.
"""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.abc import PQGen
from psycopg.rows import TupleRow

RV = TypeVar("RV")
MARGIN_S = 5.0  # on top of what a statement may take
log = logging.getLogger(__name__)


def impatient(limit_s: float) -> type[AsyncConnection[TupleRow]]:
    """Connections that give up a wait for the server when nothing has moved for so long."""

    class Impatient(AsyncConnection[TupleRow]):
        patience_s = limit_s

        async def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
            listening = _Listening(self, self.patience_s)
            try:
                return await super().wait(listening.to(gen), *args, **kwargs)
            finally:
                listening.end()

    return Impatient


class _Listening:
    """Cuts a connection on which no byte goes in either direction for so long. The whole time says
    nothing: many statements that are sent together, or a large answer, may take any time."""

    def __init__(self, connection: Any, limit_s: float) -> None:
        self._connection = connection
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._moved_at = self._loop.time()
        self._timer = self._loop.call_later(limit_s, self._look)

    def to(self, gen: PQGen[RV]) -> PQGen[RV]:
        """The same steps of the driver, each of which is a sign of life."""
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    self._moved_at = self._loop.time()
                wanted = gen.send(ready)
        except StopIteration as end:
            result: RV = end.value
            return result

    def end(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        left = self._moved_at + self._limit_s - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            _cut(self._connection, self._limit_s)


@contextmanager
def script(connection: Any, text: str) -> Iterator[None]:
    """For statements that are sent as one text: each may take its time, and the server says nothing
    before the last of them is done."""
    before = connection.patience_s
    connection.patience_s = before * max(1, text.count(";"))
    try:
        yield
    finally:
        connection.patience_s = before


def impatient_thread(limit_s: float) -> type[psycopg.Connection[TupleRow]]:
    """The same for a thread without an event loop."""

    class Impatient(psycopg.Connection[TupleRow]):
        def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
            waiting = threading.Lock()
            timer = threading.Timer(limit_s, _cut_while, (waiting, self, limit_s))
            timer.daemon = True
            timer.start()
            try:
                return super().wait(gen, *args, **kwargs)
            finally:
                timer.cancel()
                waiting.acquire()  # for good: from now on there is nothing to be cut

    return Impatient


def _cut_while(waiting: threading.Lock, connection: Any, limit_s: float) -> None:
    if waiting.acquire(blocking=False):
        try:
            _cut(connection, limit_s)
        finally:
            waiting.release()


def _cut(connection: Any, limit_s: float) -> None:
    """Whoever waits on the socket is told that it has ended; its number stays the connection's."""
    log.warning("Postgres has not said a word for %g s; this connection is given up", limit_s)
    with socket.socket(fileno=os.dup(connection.fileno())) as ours:
        try:
            ours.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            log.info("that connection had ended already: %s", error)
