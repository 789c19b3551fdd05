"""Is the API server still telling us what happens? An operator that has gone deaf looks well.

Each watch is asked to last a minute at most (`timeoutSeconds`), so that there is an answer each
minute also where nothing happens and no bookmarks come; a watch whose connection died unseen is
given up by kopf after its inactivity time-out and asked anew. What counts here are answers with
status 200 to a list or a watch, by the kind that was asked for, seen on the session that kopf uses.
There, too, is held back who asks the same again and again: a watch that ends at once (a proxy
that takes no streams) is begun anew at once by kopf, thousands of times a second.
"""

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace

import aiohttp
from yarl import URL

# A whole number: it goes out as it stands here, and the API server takes no fraction.
WATCH_LASTS_S = 60
SILENT_S = 70.0
# The same is asked again after so long at the earliest, each time that it was asked so lately.
FIRST_PAUSE_S, MOST_PAUSE_S, LATELY_S = 0.25, 8.0, 10.0
JSON = "application/json"


class Watches:
    """When each kind was last answered; readable from any thread. `kinds` are expected from the
    start, others count from their first answer, when `found` is called with them."""

    def __init__(self, *kinds: str, found: Callable[[str], None] = lambda kind: None) -> None:
        self._found = found
        started = time.monotonic()
        self._answered = dict.fromkeys(kinds, started)
        self.listed: dict[str, asyncio.Event] = {kind: asyncio.Event() for kind in kinds}
        self._pace = Pace()

    def age(self, kind: str) -> float:
        return time.monotonic() - self._answered[kind]

    def stale(self, limit_s: float) -> str | None:
        """A sentence about the kind that was not answered for the longest, if too long."""
        kind = min(self._answered, key=lambda kind: self._answered[kind])
        age = self.age(kind)
        if age <= limit_s:
            return None
        return f"no watch of {kind} was answered for {age:.0f} s; see the log for what the API " \
               "server says"  # fmt: skip

    def waits_for(self, kind: str) -> str | None:
        return None if self.listed[kind].is_set() else f"{kind} were not listed yet"

    def trace(self) -> aiohttp.TraceConfig:
        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(self._starts)
        trace.on_request_end.append(self._ended)
        return trace

    async def _starts(
        self,
        session: aiohttp.ClientSession,
        context: SimpleNamespace,
        starts: aiohttp.TraceRequestStartParams,
    ) -> None:
        """Held back, if it comes too soon; pages of a list are not."""
        query = starts.url.query
        if starts.method == "GET" and asked(starts.url) and "continue" not in query:
            await asyncio.sleep(self._pace.wait_s((starts.url.path, "watch" in query)))
            if session.closed:  # meanwhile: kopf has been refused, and has opened another
                raise aiohttp.ClientConnectionError("The session is closed.")

    async def _ended(
        self,
        session: aiohttp.ClientSession,
        context: SimpleNamespace,
        ended: aiohttp.TraceRequestEndParams,
    ) -> None:
        if ended.method == "GET" and ended.response.status == 200 and (kind := asked(ended.url)):
            watched = "watch" in ended.url.query
            if not watched and ended.response.content_type != JSON:
                return  # a page that a proxy shows to whoever has not logged in is no list
            new = kind not in self._answered
            self._answered[kind] = time.monotonic()
            if new:
                self._found(kind)
            if not watched and kind in self.listed:
                self.listed[kind].set()


class Pace:
    """How long whoever asks for a list or watch has to wait, so as not to ask again too soon."""

    def __init__(self) -> None:
        self._began: dict[tuple[str, bool], float] = {}
        self._pause: dict[tuple[str, bool], float] = {}

    def wait_s(self, key: tuple[str, bool]) -> float:
        now = time.monotonic()
        since = now - self._began.get(key, float("-inf"))
        pause = min(MOST_PAUSE_S, 2 * self._pause.get(key, 0.0) or FIRST_PAUSE_S)
        self._pause[key] = pause = pause if since < LATELY_S else 0.0
        wait = max(0.0, pause - since)
        self._began[key] = now + wait
        return wait


def asked(url: URL) -> str | None:
    """The kind that a list or watch is about, by its plural: the last part of a path that has more
    than a discovery's; None for what is neither."""
    match url.path.strip("/").split("/"):
        case ["api", _, kind] | ["api", _, "namespaces", _, kind]:
            return kind
        case ["apis", _, _, kind] | ["apis", _, _, "namespaces", _, kind]:
            return kind
    return None
