"""The wires of one process of a model test: each can be cut between any two statements.

Every statement to Postgres (BEGIN and COMMIT too) and every round trip to Redis passes two points:
before it is sent, and after the server has done it. At the n-th point of a step the wire is cut.
`crash`: the process is dead, whatever it was doing: from here on nothing of it reaches a server,
and its connections close without another word. `hang up`: the connection is closed and the process
lives; it sees what a driver raises then, and does what the product does about it.
Each statement is shown to a `Judge`, together with whether the server has done it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncCursor, AsyncServerCursor, Connection, Cursor
from psycopg.abc import PQGen
from psycopg.pq.abc import PGconn
from psycopg.rows import TupleRow
from psycopg.types.string import TextLoader
from redis.asyncio import Connection as RedisConnection
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisGone

from researchcopilot.core.settings import DatabaseSettings, RedisSettings
from researchcopilot.storage.db import Database, configure, connection_options, translate
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.renewal import Renewer

T = TypeVar("T")


class Crash(BaseException):
    """The process is dead. No `except Exception` of the product may live through it."""


class Judge(Protocol):
    def judge(self, query: Any, params: Any, rows: list[Any] | None, done: bool) -> None:
        """`rows`: the answer; None if nobody got one. `done`: the server has done it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where: the n-th point of a step. How: crash or hang up."""

    point: int
    crash: bool


class Wire:
    """What all connections of one process share."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.dead = False
        self.happened = ""  # how it was cut in this step, and from whom
        self._cut: Cut | None = None
        self._passed = 0

    def arm(self, cut: Cut | None) -> None:
        self._cut = cut
        self._passed = 0
        self.happened = ""

    def reached(self, server: str) -> bool:
        """Pass a point; True: hang up here. Raises Crash."""
        if self.dead:
            raise Crash
        point, self._passed = self._passed, self._passed + 1
        if self._cut is None or point != self._cut.point:
            return False
        self.dead = self._cut.crash
        self.happened = f"{'crash' if self.dead else 'hang up'} at {server}"
        if self.dead:
            raise Crash
        return True


# Postgres


class _Cuttable:
    """A connection of psycopg: `done` counts what the server has answered."""

    wire: Wire
    pgconn: PGconn
    done = 0

    def pass_point(self) -> None:
        if self.wire.reached("postgres"):
            self.pgconn.finish()
            raise psycopg.OperationalError("the connection was cut by the test")


class _Async(_Cuttable, AsyncConnection[TupleRow]):
    async def wait(self, gen: PQGen[T], *args: Any, **more: Any) -> T:
        self.pass_point()
        found = await super().wait(gen, *args, **more)
        self.done += 1
        self.pass_point()
        return found


class _AsyncCursor(AsyncCursor[Any]):
    async def execute(self, query: Any, params: Any = None, **more: Any) -> Any:
        connection: Any = self.connection
        before, rows = connection.done, None
        try:
            await super().execute(query, params, **more)
            rows = await _all(self)
        finally:
            connection.wire.judge.judge(query, params, rows, connection.done > before)
        return self


class _AsyncPages(AsyncServerCursor[Any]):
    async def close(self) -> None:
        """Also if the wire is cut at just this word: the server has closed it then."""
        try:
            await super().close()
        finally:
            self._close()


async def _all(cursor: _AsyncCursor) -> list[Any]:
    if cursor.description is None:
        return []
    rows = await cursor.fetchall()
    if rows:
        await cursor.scroll(0, "absolute")
    return rows


class CutDatabase(Database):
    """One connection instead of a pool; a new one after it was cut. `spare`: those that processes
    before have left whole, since to open one takes longer than most statements."""

    def __init__(self, settings: DatabaseSettings, wire: Wire, spare: list[_Async]) -> None:
        super().__init__(settings)
        self._wire = wire
        self._free = spare

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[TupleRow]]:
        connection = self._free.pop() if self._free else await self._open()
        connection.wire = self._wire
        try:
            yield connection
        except Exception as error:
            other = translate(error)
            if other is error:
                raise
            raise other from error
        finally:
            if self._wire.dead:
                connection.pgconn.finish()
            elif not connection.closed:
                self._free.append(connection)

    async def _open(self) -> _Async:
        options = connection_options(self.settings)
        _Async.wire = self._wire  # while it connects; one process acts at a time
        connection = await _Async.connect(self.settings.url, **options)
        connection.cursor_factory = _AsyncCursor
        connection.server_cursor_factory = _AsyncPages
        await configure(connection)
        return connection


class _Sync(_Cuttable, Connection[TupleRow]):
    def wait(self, gen: PQGen[T], *args: Any, **more: Any) -> T:
        self.pass_point()
        found = super().wait(gen, *args, **more)
        self.done += 1
        self.pass_point()
        return found


class _SyncCursor(Cursor[Any]):
    def execute(self, query: Any, params: Any = None, **more: Any) -> Any:
        connection: Any = self.connection
        before, rows = connection.done, None
        try:
            super().execute(query, params, **more)
            rows = self.fetchall()
            if rows:
                self.scroll(0, "absolute")
        finally:
            connection.wire.judge.judge(query, params, rows, connection.done > before)
        return self


class CutRenewer(Renewer):
    """The worker's other connection, which its thread would use."""

    def __init__(self, settings: DatabaseSettings, wire: Wire) -> None:
        super().__init__(settings, 5.0)
        self._wire = wire

    def ready(self) -> None:
        """Connect, unless it is connected."""
        if self._connection is None or self._connection.closed:
            _Sync.wire = self._wire
            connection = _Sync.connect(self._url, **self._options)
            connection.wire = self._wire
            connection.cursor_factory = _SyncCursor
            connection.adapters.register_loader("uuid", TextLoader)
            self._connection = connection


# Redis


class _RedisConnection(RedisConnection):
    wire: Wire
    greeted = False

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        """What every connect ends with; `on_connect` is only one of its callers."""
        self.greeted = False
        await super().on_connect_check_health(check_health)
        self.greeted = True

    async def send_packed_command(self, *args: Any, **more: Any) -> None:
        if not self.is_connected:
            await self.connect()  # type: ignore[no-untyped-call]
        if self.greeted and self.wire.reached("redis"):
            await self._hang_up()
        await super().send_packed_command(*args, **more)

    async def read_response(self, *args: Any, **more: Any) -> Any:
        found = await super().read_response(*args, **more)
        if self.greeted and self.wire.reached("redis"):
            await self._hang_up()
        return found

    async def _hang_up(self) -> None:
        await self.disconnect(nowait=True)
        raise RedisGone("the connection was cut by the test")


class CutQueue(Queue):
    def __init__(self, settings: RedisSettings, wire: Wire) -> None:
        self._kind = type("_Cut", (_RedisConnection,), {"wire": wire})
        super().__init__(settings)

    def _client(self, max_connections: int) -> Redis:
        client = super()._client(max_connections)
        client.connection_pool.connection_class = self._kind
        return client
