"""The keeper: a thread with a connection of its own that renews what this process holds.

Outside the event loop, since a holder that blocks the loop still works on what the lock guards.
Each lock is renewed at a third of its time. A lock is lost as soon as Redis says that it is
somebody else's, or when its time is over without an answer; the holder is told in that moment: of
the second by its own loop, since this thread may hang in a renewal that nobody answers.
"""

import asyncio
import contextlib
import logging
import threading
import time

import redis
from prometheus_client import Counter
from redis.backoff import NoBackoff
from redis.retry import Retry

from researchcopilot.core.errors import LostLock
from researchcopilot.core.settings import RedisSettings
from researchcopilot.storage.lua import load

log = logging.getLogger(__name__)
_PATIENCE_S = 1.0
ACQUIRED = Counter("researchcopilot_lock_acquisitions_total", "Locks taken, by kind", ["lock"])
LOST = Counter(
    "researchcopilot_lock_losses_total",
    "Locks that ran out, were wiped or went to somebody else while they were held",
    ["lock"],
)
MOST_KINDS = 50
_kinds: set[str] = set()


class Held:
    """A lock in this process's hands. `lost` is set on the loop of its holder; `check` may be
    called from anywhere. `fence` is its number in Postgres, if it was asked for."""

    def __init__(self, name: str, key: str, token: str, ttl_s: float) -> None:
        self.name = name
        self.key = key
        self.token = token
        self.ttl_s = ttl_s
        self.fence: int | None = None
        self.lost = asyncio.Event()
        self._until = 0.0  # monotonic; what Redis keeps is never shorter
        self._gone = False
        self._watch: asyncio.TimerHandle | None = None

    @property
    def kind(self) -> str:
        """Its name without whose it is (`rebuild_index:7`), for metrics. Agents name locks as they
        like, and a label may not grow without end."""
        kind = self.name.partition(":")[0]
        if len(_kinds) < MOST_KINDS:
            _kinds.add(kind)
        return kind if kind in _kinds else "other"

    @property
    def never(self) -> bool:
        """It was never seen to be ours."""
        return self._until == 0.0

    @property
    def is_lost(self) -> bool:
        return self._gone or time.monotonic() >= self._until

    def check(self) -> None:
        """Raises LostLock once somebody else may have it."""
        if self.is_lost:
            raise LostLock(f"The lock {self.name} was lost; somebody else may hold it.")

    def renewed(self, until: float) -> None:
        self._until = until

    def taken(self) -> None:
        ACQUIRED.labels(self.kind).inc()
        LOST.labels(self.kind)  # from 0: a series that is born at 1 hides the first loss

    def lose(self) -> None:
        if not self._gone:
            LOST.labels(self.kind).inc()
        self._gone = True

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the holder's loop: tell it once its time is over, however often it is renewed."""
        left = self._until - time.monotonic()
        if self._gone or left <= 0:
            self.lose()
            self.lost.set()
        else:
            self._watch = loop.call_later(left, self.watch, loop)

    def unwatch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()


class Keeper:
    """Starts its thread with the first lock that is kept."""

    def __init__(self, settings: RedisSettings) -> None:
        self._redis = redis.Redis.from_url(
            settings.url,
            decode_responses=True,
            socket_connect_timeout=_PATIENCE_S,
            socket_timeout=_PATIENCE_S,
            retry=Retry(NoBackoff(), 0),
            max_connections=1,
        )
        self._renew = self._redis.register_script(load("lock_renew"))
        self._changed = threading.Condition()
        self._due: dict[Held, tuple[float, asyncio.AbstractEventLoop]] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def keep(self, held: Held, loop: asyncio.AbstractEventLoop) -> None:
        """Renew it until it is forgotten or lost."""
        with self._changed:
            self._due[held] = (time.monotonic() + held.ttl_s / 3, loop)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="locks", daemon=True)
                self._thread.start()
            self._changed.notify()

    def forget(self, held: Held) -> None:
        with self._changed:
            self._due.pop(held, None)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(2 * _PATIENCE_S)
        self._redis.close()

    def _run(self) -> None:
        while (held := self._next()) is not None:
            pause = self._renewed(held)
            with self._changed:
                if held in self._due:
                    loop = self._due[held][1]
                    if pause is None:
                        del self._due[held]
                        _tell(held, loop)
                    else:
                        self._due[held] = (time.monotonic() + pause, loop)

    def _next(self) -> Held | None:
        """The next one to be renewed, once it is time; None at the end."""
        with self._changed:
            while not self._closed:
                if not self._due:
                    self._changed.wait()
                    continue
                held = min(self._due, key=lambda one: self._due[one][0])
                wait = self._due[held][0] - time.monotonic()
                if wait <= 0:
                    return held
                self._changed.wait(wait)
        return None

    def _renewed(self, held: Held) -> float | None:
        """Seconds until the next renewal; None if it is lost."""
        if held.is_lost:  # nobody answered, or this process was stopped, for all of its time
            log.warning("the lock %s ran out before it could be renewed", held.name)
            return None
        until = time.monotonic() + held.ttl_s
        try:
            kept = self._renew(keys=[held.key], args=[held.token, max(1, int(held.ttl_s * 1000))])
        except (redis.RedisError, OSError) as error:
            log.warning("the lock %s is not renewed: %s", held.name, error)
            return min(0.5, held.ttl_s / 10)
        if not kept:
            log.warning("the lock %s is somebody else's, or was wiped", held.name)
            return None
        held.renewed(until)
        return held.ttl_s / 3


def _tell(held: Held, loop: asyncio.AbstractEventLoop) -> None:
    held.lose()
    with contextlib.suppress(RuntimeError):  # the loop has ended, and the holder with it
        loop.call_soon_threadsafe(held.lost.set)
