"""Locks: one holder at a time, by a token in Redis that runs out by itself.

    async with locks.hold("scheduler", ttl_s=5) as held:
        if held is None:            # somebody else has it: skip this round
            return
        ...
        held.check()                # raises LostLock once it may be somebody else's

A lock is an optimisation: it may be lost at any moment (a flush, a stopped process, a failover).
What must not happen twice is guarded in Postgres, by a unique key or by the lock's `fence`, which
`check_fence` compares within the transaction that publishes. Renewal comes from a thread with a
connection of its own, so that a holder who blocks the event loop keeps its lock while it works.
"""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, cast

from psycopg import AsyncConnection
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from researchcopilot.core.errors import LostLock, Unavailable
from researchcopilot.core.settings import RedisSettings
from researchcopilot.storage.db import Database
from researchcopilot.storage.keeper import Held, Keeper
from researchcopilot.storage.lua import load
from researchcopilot.storage.sql import load as load_sql
from researchcopilot.storage.told import told

_SQL = load_sql("locks")
# A waiter looks again after so long at most: what a hint that got lost can cost.
LOOK_AGAIN_S = 1.0
# A server that takes longer for anything else does not answer.
ANSWER_S = 2.0
# Waiters that were not woken by a hint come back spread over so long.
SPREAD_S = 0.2
_HINT_KEPT_MS = 1000
log = logging.getLogger(__name__)


class Locks:
    """The locks of one process. Close it to give up what is still held."""

    def __init__(self, settings: RedisSettings, db: Database | None = None) -> None:
        self._prefix = settings.prefix
        self._db = db
        self._redis = _client(settings, ANSWER_S)
        self._waiting = _client(settings, LOOK_AGAIN_S + 5)  # where no answer may be an answer
        self._release = self._redis.register_script(load("lock_release"))
        self._keeper = Keeper(settings)
        self._lines: dict[str, asyncio.Lock] = {}

    async def close(self) -> None:
        self._keeper.close()
        await self._redis.aclose()
        await self._waiting.aclose()

    @asynccontextmanager
    async def hold(
        self, name: str, *, ttl_s: float = 15.0, wait_s: float = 0.0, fenced: bool = False
    ) -> AsyncIterator[Held | None]:
        """The lock while inside; None if somebody else has it, for all of `wait_s`.

        `fenced`: with a number from Postgres. Raises Unavailable when Redis (or, fenced, Postgres)
        is away: then nobody knows whose it is, and it is not taken.
        """
        held = Held(name, self._key(name), secrets.token_hex(16), ttl_s)
        taken = False
        try:
            taken = await self._acquire(held, wait_s) and await self._equip(held, fenced)
            if taken:
                held.taken()
            yield held if taken else None
        finally:
            held.unwatch()
            self._keeper.forget(held)
            await self._give_back(held, taken)

    def _key(self, name: str) -> str:
        return f"{self._prefix}lock:{name}"

    async def _acquire(self, held: Held, wait_s: float) -> bool:
        if await self._take(held):
            return True
        give_up = time.monotonic() + wait_s
        # One waiter of this process for each lock: the others stand behind it, in order.
        line = self._lines.setdefault(held.name, asyncio.Lock())
        try:
            await asyncio.wait_for(line.acquire(), max(0.0, wait_s))
        except TimeoutError:
            return False
        try:
            while (left := give_up - time.monotonic()) > 0:
                await self._pause(held, left)
                if await self._take(held):
                    return True
            return False
        finally:
            line.release()

    async def _take(self, held: Held) -> bool:
        until = time.monotonic() + held.ttl_s
        async with told():
            taken = await self._redis.set(
                held.key, held.token, nx=True, px=max(1, int(held.ttl_s * 1000))
            )
        if taken:
            held.renewed(until)
        return bool(taken)

    async def _pause(self, held: Held, left: float) -> None:
        """Until a hint says that it is free, it runs out, or it is time to look again."""
        async with told():
            runs_out_ms = int(await self._redis.pttl(held.key))
            if runs_out_ms == -2:  # free by now
                return
            runs_out = runs_out_ms / 1000 if runs_out_ms >= 0 else LOOK_AGAIN_S
            pause = min(runs_out, LOOK_AGAIN_S) + random.uniform(0, SPREAD_S)
            waiting = self._waiting.blpop([f"{held.key}:free"], timeout=min(pause, left))
            await cast(Awaitable[Any], waiting)

    async def _equip(self, held: Held, fenced: bool) -> bool:
        """A fence, and somebody who renews. False if it ran out over that."""
        if fenced:
            assert self._db is not None, "a fence comes from the database"
            [(held.fence,)] = await self._db.rows(_SQL["fence"], {"name": held.name})
        # A process that was stopped between the two may have a fence that is too new: it is given
        # up here; the one who has the lock finds its own number stale, and takes it again.
        if held.is_lost:
            return False
        loop = asyncio.get_running_loop()
        self._keeper.keep(held, loop)
        held.watch(loop)
        return True

    async def _give_back(self, held: Held, taken: bool) -> None:
        """Also after a failure in between: if the token never came in, this changes nothing."""
        if not taken and held.never:
            return
        try:
            async with told():
                given_back = await self._release(
                    keys=[held.key, f"{held.key}:free"], args=[held.token, _HINT_KEPT_MS]
                )
            if taken and not given_back:
                held.lose()  # between two renewals: nobody else would ever see it
        except Unavailable as error:
            log.warning("the lock %s runs out in %.1f s: %s", held.name, held.ttl_s, error)


def _client(settings: RedisSettings, answer_s: float) -> Redis:
    return Redis.from_url(
        settings.url,
        decode_responses=True,
        socket_connect_timeout=2,
        socket_timeout=answer_s,
        retry=Retry(NoBackoff(), 0),
    )


async def check_fence(connection: AsyncConnection[Any], held: Held) -> None:
    """Raises LostLock unless nobody has taken the lock since. To be called in the transaction that
    publishes: until its end nobody can take it."""
    assert held.fence is not None, "hold it with fenced=True"
    cursor = await connection.execute(_SQL["is_mine"], {"name": held.name, "fence": held.fence})
    row = await cursor.fetchone()
    if row is None or not row[0]:
        raise LostLock(f"The lock {held.name} was taken by somebody else; fence {held.fence}.")
