"""Postgres: one pool a process, named queries, and one way of telling that it went away.

Every statement has a lock, a statement and a TCP time-out, and one of our own (`silence`). What a
server that goes away raises becomes `Unavailable`; a deadlock or serialisation failure becomes
`TryAgain`. Both are safe to repeat, since every move is. Works behind PgBouncer: no prepared
statements are kept, no session state is used.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg import AsyncConnection, errors
from psycopg.abc import Params
from psycopg.rows import DictRow, TupleRow, dict_row, tuple_row
from psycopg.types.string import TextLoader
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from researchcopilot.core.errors import Unavailable
from researchcopilot.core.settings import DatabaseSettings
from researchcopilot.storage.silence import MARGIN_S, impatient


class TryAgain(Unavailable):
    """Postgres ended the transaction for another one's sake (deadlock, serialisation)."""


class Locked(TryAgain):
    """Somebody else has locked a row for as long as we wait for one. Who was sent together with it
    should not wait too."""


_PASSING = (errors.DeadlockDetected, errors.SerializationFailure)
# Missing only when retention has removed an old session a moment ago: the submit makes it again.
_PRUNED = frozenset({"runs_session_id_fkey", "messages_session_id_fkey"})
# Raised by a server that is up but cannot work now: shutting down, starting, read-only, full.
_AWAY = (
    psycopg.InterfaceError,
    psycopg.OperationalError,
    errors.ReadOnlySqlTransaction,
    PoolTimeout,
    OSError,
)
# A limit of Postgres that this statement is past (nested too deeply, too long). The driver files
# it under OperationalError too, but the server is there, and would say so for ever.
_TOO_MUCH = "54"
# How long a knock waits to be let in; it has made the pool try by then.
KNOCK_S = 1.0
RECONNECT_S = 2.0  # then the pool gives up, until somebody asks again


def translate(error: BaseException) -> BaseException:
    """The house's name for an error of the driver; anything else comes back as it is."""
    if isinstance(error, errors.LockNotAvailable):
        return Locked(f"Somebody has locked it for long: {str(error).splitlines()[0]}")
    if isinstance(error, _PASSING) or _is_pruned(error):
        return TryAgain(str(error).splitlines()[0])
    if isinstance(error, errors.QueryCanceled):
        return Unavailable("Postgres did not answer within the statement time-out.")
    if isinstance(error, _AWAY) and not _is_too_much(error):
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return Unavailable(f"Postgres does not answer: {first}")
    return error


def _is_pruned(error: BaseException) -> bool:
    return isinstance(error, errors.ForeignKeyViolation) and error.diag.constraint_name in _PRUNED


def _is_too_much(error: BaseException) -> bool:
    return isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith(_TOO_MUCH)


def connection_options(settings: DatabaseSettings) -> dict[str, Any]:
    """What every connection of ours is opened with, from whichever thread."""
    milliseconds = int(settings.statement_timeout_s * 1000)
    return {
        "autocommit": True,
        "prepare_threshold": None,
        "connect_timeout": 5,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 20_000,
        "options": f"-c statement_timeout={milliseconds} -c lock_timeout={milliseconds // 2} "
        "-c idle_in_transaction_session_timeout=60000 -c timezone=UTC",
        "application_name": "researchcopilot",
    }


async def configure(connection: AsyncConnection[Any]) -> None:
    """UUIDs arrive as their canonical text: ids are strings in this house."""
    connection.adapters.register_loader("uuid", TextLoader)


class Database:
    """A pool of connections and the calls that all queries go through."""

    def __init__(self, settings: DatabaseSettings) -> None:
        self.settings = settings
        self.pool: AsyncConnectionPool[AsyncConnection[TupleRow]] = AsyncConnectionPool(
            settings.url,
            connection_class=impatient(settings.statement_timeout_s + MARGIN_S),
            kwargs=connection_options(settings),
            min_size=1,
            max_size=settings.pool,
            timeout=10,
            max_idle=300,
            reconnect_timeout=RECONNECT_S,
            reconnect_failed=self._given_up,
            configure=configure,
            open=False,
        )
        self._knock: asyncio.Task[None] | None = None
        self._out_of_hope = False

    async def open(self) -> None:
        """Start the pool; does not wait for the server, which may come later."""
        await self.pool.open(wait=False)

    async def close(self) -> None:
        await self.pool.close(timeout=2)
        if self._knock is not None:
            await asyncio.wait((self._knock,))

    async def _given_up(self, pool: object) -> None:
        """The pool tries again only for somebody who comes anew; who stands in its line already
        would wait out his time although the server is back. So somebody comes anew."""
        self._out_of_hope = True
        if self._knock is None or self._knock.done():
            self._knock = asyncio.create_task(self._come_anew())

    async def _come_anew(self) -> None:
        """Again if the pool has given up meanwhile: another of its tries may have been under way,
        and then nobody was let in for this one's sake."""
        while self._out_of_hope and not self.pool.closed:
            self._out_of_hope = False
            with contextlib.suppress(psycopg.Error):  # nobody was there in time
                async with self.pool.connection(timeout=KNOCK_S):
                    pass

    async def reach(self) -> None:
        """Connect once beside the pool, which would say after its ten seconds that nobody came, and
        not why. Raises Unavailable with the reason: a name that does not resolve, a password."""
        try:
            options = connection_options(self.settings)
            await (await AsyncConnection.connect(self.settings.url, **options)).close()
        except (psycopg.Error, OSError) as error:
            raise translate(error) from error

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[TupleRow]]:
        """One connection, in autocommit; `async with connection.transaction()` for more."""
        try:
            async with self.pool.connection() as connection:
                yield connection
        except asyncio.CancelledError:
            raise
        except Exception as error:
            other = translate(error)
            if other is error:
                raise
            raise other from error

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[TupleRow]]:
        """One connection in one transaction, committed at the end of the block."""
        async with self.connection() as connection, connection.transaction():
            yield connection

    async def rows(self, query: bytes, params: Params | None = None) -> list[TupleRow]:
        async with self.connection() as connection:
            cursor = connection.cursor(row_factory=tuple_row)
            await cursor.execute(query, params)
            return await cursor.fetchall()

    async def dicts(self, query: bytes, params: Params | None = None) -> list[DictRow]:
        async with self.connection() as connection:
            cursor = connection.cursor(row_factory=dict_row)
            await cursor.execute(query, params)
            return await cursor.fetchall()

    async def one(self, query: bytes, params: Params | None = None) -> DictRow | None:
        """The first row, or None."""
        rows = await self.dicts(query, params)
        return rows[0] if rows else None

    async def execute(self, query: bytes, params: Params | None = None) -> int:
        """Run a statement that returns nothing; the number of rows it touched."""
        async with self.connection() as connection:
            cursor = await connection.execute(query, params)
            return cursor.rowcount
