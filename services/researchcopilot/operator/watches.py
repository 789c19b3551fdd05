"""Is the API server still telling us what happens? An operator that has gone deaf looks well.

Each watch is asked to last a minute at most (`timeoutSeconds`), so that there is an answer each
minute also where nothing happens and no bookmarks come; a watch whose connection died unseen is
given up by kopf after its inactivity time-out and asked anew. What counts here are answers with
status 200 to a list or a watch, by the kind that was asked for, seen on the session that kopf uses.
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


class Watches:
    """When each kind was last answered; readable from any thread. `kinds` are expected from the
    start, others count from their first answer, when `found` is called with them."""

    def __init__(self, *kinds: str, found: Callable[[str], None] = lambda kind: None) -> None:
        self._found = found
        started = time.monotonic()
        self._answered = dict.fromkeys(kinds, started)
        self.listed: dict[str, asyncio.Event] = {kind: asyncio.Event() for kind in kinds}

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
        trace.on_request_end.append(self._ended)
        return trace

    async def _ended(
        self,
        session: aiohttp.ClientSession,
        context: SimpleNamespace,
        ended: aiohttp.TraceRequestEndParams,
    ) -> None:
        if ended.method == "GET" and ended.response.status == 200 and (kind := asked(ended.url)):
            new = kind not in self._answered
            self._answered[kind] = time.monotonic()
            if new:
                self._found(kind)
            if "watch" not in ended.url.query and kind in self.listed:
                self.listed[kind].set()


def asked(url: URL) -> str | None:
    """The kind that a list or watch is about, by its plural: the last part of a path that has more
    than a discovery's; None for what is neither."""
    match url.path.strip("/").split("/"):
        case ["api", _, kind] | ["api", _, "namespaces", _, kind]:
            return kind
        case ["apis", _, _, kind] | ["apis", _, _, "namespaces", _, kind]:
            return kind
    return None
