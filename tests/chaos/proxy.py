"""A small TCP proxy between each part and its servers, and what can be done to a line.

Each part reaches Postgres and Redis over a `Line` of its own. A line can be cut (RST on both
sides), slowed down, closed in one direction for a while, and made to lose the answer of a move
that Postgres has committed. What was held back is delivered late, as TCP would, or its connection
is cut: a stream with a hole in it does not exist. A line counts what it did: a fault that was not
seen to happen is none. It must never change a byte.
"""

import asyncio
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Any, TypeVar

T = TypeVar("T")
HOST = "127.0.0.1"
CHUNK = 65_536
LATE_S = 60.0
# Postgres' wire: a call of one of our moves, or the end of a transaction …
MOVE = re.compile(rb"COMMIT|\b(submit|claim|finish|reclaim|expire|cancel|free|fire)_\d+\(")
DONE = b"Z\x00\x00\x00\x05I"  # … and "ready for a query, in no transaction": it has committed
FAILED = re.compile(rb"S(ERROR|FATAL|PANIC)\x00")
_RESET = struct.pack("ii", 1, 0)


class Way(StrEnum):
    THERE = "to the server"
    BACK = "from the server"


class _Pair:
    """One connection of a part, and ours to the server for it."""

    def __init__(
        self,
        line: "Line",
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._line = line
        self._client = client
        self._server = server
        self._dead = False
        self._answer: bytes | None = None  # of a move that is to be lost, as far as it has come
        self.held: Counter[Way] = Counter()

    async def run(self) -> None:
        there = asyncio.create_task(self._there())
        back = asyncio.create_task(self._back())
        await asyncio.wait({there, back})
        for writer in (self._client[1], self._server[1]):
            writer.close()

    def cut(self) -> None:
        """RST on both sides; what was under way is lost."""
        self._dead = True
        for _, writer in (self._client, self._server):
            with suppress(OSError):
                connection: socket.socket = writer.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()

    async def _there(self) -> None:
        """The end of the client's stream is held back too: its server still works on the rest."""
        reader, writer = self._client[0], self._server[1]
        try:
            while chunk := await reader.read(CHUNK):
                await self._line.passing(Way.THERE, self)
                if self._line.is_to_lose(chunk):
                    self._answer = b""
                if not self._dead:
                    writer.write(chunk)
                    await writer.drain()
            await self._line.passing(Way.THERE, self)
            if not self._dead and writer.can_write_eof():
                writer.write_eof()
        except OSError:
            self.cut()

    async def _back(self) -> None:
        """A server that has closed is gone: whoever still writes is told so."""
        reader, writer = self._server[0], self._client[1]
        try:
            while chunk := await reader.read(CHUNK):
                await self._line.passing(Way.BACK, self)
                if self._answer is not None:
                    self._lose(chunk)
                elif not self._dead:
                    writer.write(chunk)
                    await writer.drain()
            await self._line.passing(Way.BACK, self)
            writer.close()
            self._server[1].close()
        except OSError:
            self.cut()

    def _lose(self, chunk: bytes) -> None:
        """Once all of the answer is there, its move has committed; nobody is told."""
        assert self._answer is not None
        self._answer += chunk
        if self._answer.endswith(DONE):
            failed = FAILED.search(self._answer) is not None
            self._line.counts["refusals lost" if failed else "answers lost"] += 1
            self.cut()


class Line:
    """One part's way to one server. Its verbs may be called from any thread but the loop's."""

    def __init__(
        self, part: str, server: str, port_of: Callable[[], int], network: "Network"
    ) -> None:
        self.part = part
        self.server = server
        self.port = 0
        self.counts: Counter[str] = Counter()
        self._port_of = port_of
        self._network = network
        self._pairs: set[_Pair] = set()
        self._delay_s = 0.0
        self._holders: Counter[Way] = Counter()
        self._open: dict[Way, asyncio.Event] = {}
        self._to_lose = 0

    async def listen(self) -> None:
        for way in Way:
            self._open[way] = asyncio.Event()
            self._open[way].set()
        self._listener = await asyncio.start_server(self._accept, HOST, 0, backlog=256)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def end(self) -> None:
        self._listener.close()
        for gate in self._open.values():
            gate.set()
        await self._cut(lambda pair: True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server = await asyncio.open_connection(HOST, self._port_of())
        except OSError:
            self.counts["refused"] += 1
            writer.transport.abort()
            return
        pair = _Pair(self, (reader, writer), server)
        self._pairs.add(pair)
        try:
            await pair.run()
        finally:
            self._pairs.discard(pair)

    # What connections ask of their line

    async def passing(self, way: Way, pair: _Pair) -> None:
        """Returns when bytes may pass; counts those that had to wait."""
        if self._delay_s:
            self.counts["delayed"] += 1
            await asyncio.sleep(self._delay_s)
        if not self._open[way].is_set():
            self.counts["held"] += 1
            pair.held[way] += 1
            try:
                await self._open[way].wait()
            finally:
                pair.held[way] -= 1

    def is_to_lose(self, chunk: bytes) -> bool:
        if not self._to_lose or MOVE.search(chunk) is None:
            return False
        self._to_lose -= 1
        return True

    # Verbs

    def cut(self) -> int:
        """All connections, now; how many there were."""
        return self._network.call(self._cut(lambda pair: True))

    @contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Whatever passes is so late, each way."""
        self._delay_s += seconds
        try:
            yield
        finally:
            self._delay_s = max(0.0, self._delay_s - seconds)

    @contextmanager
    def closed(self, way: Way, *, late: bool) -> Iterator[None]:
        """Nothing passes in this direction. In the end it comes late, or its connection is cut."""
        self._network.call(self._hold(way, 1))
        try:
            yield
        finally:
            if not late:
                lost = self._network.call(self._cut(lambda pair: pair.held[way] > 0))
                self.counts["swallowed"] += lost
            self._network.call(self._hold(way, -1))

    @contextmanager
    def losing(self, answers: int) -> Iterator[None]:
        """The answers of the next so many moves are lost, and their connections with them."""
        self._to_lose += answers
        try:
            yield
        finally:
            self._to_lose = 0

    async def _cut(self, wanted: Callable[[_Pair], bool]) -> int:
        chosen = [pair for pair in self._pairs if wanted(pair)]
        for pair in chosen:
            pair.cut()
        self.counts["cut"] += len(chosen)
        return len(chosen)

    async def _hold(self, way: Way, change: int) -> None:
        self._holders[way] += change
        if self._holders[way]:
            self._open[way].clear()
        else:
            self._open[way].set()


class Network:
    """All lines, in a thread with a loop of its own. `close` ends every connection."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()

    def line(self, part: str, server: str, port_of: Callable[[], int]) -> Line:
        line = Line(part, server, port_of, self)
        self.call(line.listen())
        self.lines.append(line)
        return line

    def of(self, part: str | None = None, server: str | None = None) -> list[Line]:
        return [
            line
            for line in self.lines
            if part in (None, line.part) and server in (None, line.server)
        ]

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LATE_S)

    def close(self) -> None:
        self.call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LATE_S)
        self._loop.close()

    async def _end(self) -> None:
        for line in self.lines:
            await line.end()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if others:
            await asyncio.wait(others, timeout=LATE_S / 10)
