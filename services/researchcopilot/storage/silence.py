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
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.abc import PQGen
from psycopg.rows import TupleRow

RV = TypeVar("RV")
MARGIN_S = 5.0  # on top of what a statement may take
log = logging.getLogger(__name__)


def impatient(limit_s: float) -> type[AsyncConnection[TupleRow]]:
    """Connections that give up a wait for the server after so long."""

    class Impatient(AsyncConnection[TupleRow]):
        async def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
            timer = asyncio.get_running_loop().call_later(limit_s, _cut, self, limit_s)
            try:
                return await super().wait(gen, *args, **kwargs)
            finally:
                timer.cancel()

    return Impatient


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
