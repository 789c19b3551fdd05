"""The course of a chaos test: runs are submitted, faults strike, and then all must come to rest.

One event loop submits and watches; each fault is made by a thread. Faults overlap as long as they
work on different parts. What is noted of a fault is which runs it touched, by a query at the
moment of the blow; when those ran again is read from the log of the triggers at the end.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import wait
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from tests.chaos import watch
from tests.chaos.client import Client
from tests.chaos.fault import TOUCHED, Fault, Strike, targets_of
from tests.chaos.faults import FAULTS, LAST, shuffled
from tests.chaos.stage import LINES, SPARE, Stage
from tests.chaos.tally import Accepted, Tally
from tests.chaos.wanted import Wishes

from researchcopilot.core.errors import Unavailable
from researchcopilot.dev.processes import StackError
from researchcopilot.storage.db import Database

T = TypeVar("T")
CLIENTS = 8
_NOW = b"SELECT clock_timestamp()"
_BY_STATUS = b"SELECT status, count(*) FROM runs GROUP BY 1"
_FORGOTTEN = b"SELECT session_id FROM watch_forgotten"


@dataclass(frozen=True, slots=True)
class Options:
    """`runs` are spread over `seconds`; faults strike all that time, about `pause_s` apart, and at
    the same pace both go on until so many have struck, each of `deck` at least once."""

    seed: int = 1
    runs: int = 10_000
    seconds: float = 900.0
    faults: int = 200
    lease_s: float = 2.0
    pause_s: float = 1.5
    at_once: int = 3
    longest_s: float = 3.0
    rest_s: float = 90.0
    deck: tuple[Fault, ...] = FAULTS


@dataclass(frozen=True, slots=True)
class Blow:
    """One fault that struck: when, by the database, and which (run, claim) it touched."""

    fault: Fault
    at: datetime
    touched: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """How much a fault did, by who did it or suffered it; 0: it had no effect."""

    fault: Fault
    where: str
    number: int


@dataclass
class Course:
    """What happened. `seen`: what each fault that is over was seen to do, and to whom. `resting`:
    everything ended and every list was empty in time. `forgotten`: work for the safety net."""

    tally: Tally
    blows: list[Blow] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    resting: bool = False
    forgotten: int = 0
    left: dict[str, list[str]] = field(default_factory=dict)


class Driver:
    def __init__(
        self, options: Options, stage: Stage, accepted: Accepted, say: Callable[[str], None]
    ) -> None:
        self.options = options
        self.stage = stage
        self.say = say
        self.tally = Tally(accepted)
        self.course = Course(self.tally)
        self.db = Database(stage.stack.settings.database)
        self._random = random.Random(options.seed)
        self._wishes = Wishes(options.seed, options.longest_s)
        self._submitted = 0
        self._started = time.monotonic()
        self._striking: asyncio.Task[None]

    async def run(self) -> Course:
        """Servers and schema are there; the watch is installed, the parts are started."""
        await self.db.open()
        try:
            await watch.install(self.db)
            await asyncio.to_thread(self.stage.start_parts)
            self._started = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                progress = tasks.create_task(self._progress())
                await self._submit_and_strike()
                self.course.resting = await self._rest()
                progress.cancel()
            await asyncio.to_thread(self.stage.stop_parts)
            self.course.left = await asyncio.to_thread(self.stage.entries)
        finally:
            self.stage.over.set()  # a thread must not wait for a loop that has ended
            await self.db.close()
        return self.course

    async def _submit_and_strike(self) -> None:
        clients = [
            Client(self.stage.urls, self.stage.key, self.tally, self.options.seed * 100 + number)
            for number in range(CLIENTS)
        ]
        async with asyncio.TaskGroup() as tasks:
            self._striking = tasks.create_task(self._strike())
            for client in clients:
                tasks.create_task(self._submit(client))
        for client in clients:
            await client.close()

    # Submitting

    async def _submit(self, client: Client) -> None:
        """Together they keep the pace, as long as there are faults to be lived through."""
        rate = self.options.runs / self.options.seconds
        while self._submitted < self.options.runs or not self._striking.done():
            wanted = self._wishes.next()
            due = self._started + self._submitted / rate
            self._submitted += wanted.runs
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await client.submit(wanted)

    # Striking

    async def _strike(self) -> None:
        """All faults in random order, again and again, until the time is over; see LAST."""
        end = self._started + self.options.seconds
        least = max(self.options.faults - len(LAST), len(self.options.deck))
        limit = asyncio.Semaphore(self.options.at_once)
        async with asyncio.TaskGroup() as tasks:
            for number, fault in enumerate(shuffled(self.options.deck, self._random)):
                if number >= least and time.monotonic() > end:
                    break
                await limit.acquire()
                task = tasks.create_task(self._make(fault))
                task.add_done_callback(lambda _: limit.release())
                await asyncio.sleep(self._random.uniform(0, 2 * self.options.pause_s))
        await asyncio.sleep(2 * self.options.lease_s)  # runs are in all hands again
        await asyncio.gather(*(self._make(fault) for fault in LAST))

    async def _make(self, fault: Fault) -> None:
        """On parts that nobody else works on; waits for some to be free."""
        seed = self._random.getrandbits(32)
        await asyncio.to_thread(self._make_in_thread, fault, seed, asyncio.get_running_loop())

    def _make_in_thread(self, fault: Fault, seed: int, loop: asyncio.AbstractEventLoop) -> None:
        parts = [name for name in self.stage.names() if name not in SPARE]
        drawing = random.Random(seed)
        while not self.stage.over.is_set():
            names = targets_of(fault, parts, drawing)
            with self.stage.holding(*names) as free:
                if free:
                    note = self._noting(fault, names, loop)
                    self._strike_with(fault, Strike(self.stage, names, random.Random(seed), note))
                    return
            time.sleep(0.05)

    def _strike_with(self, fault: Fault, strike: Strike) -> None:
        try:
            seen = fault.acts(strike)
        except StackError as error:
            self.tally.complain(f"after {fault.name}: {error}")
            return
        if self.stage.over.is_set():
            return
        where = f"{', '.join(strike.names) or 'all parts'} until {self._clock().strip()}"
        self.course.seen.append(Seen(fault, where, seen))

    def _noting(
        self, fault: Fault, names: tuple[str, ...], loop: asyncio.AbstractEventLoop
    ) -> Callable[[], None]:
        def note() -> None:
            if self.stage.over.is_set():
                return
            noted = asyncio.run_coroutine_threadsafe(self._note(fault, names), loop)
            while not self.stage.over.is_set() and not wait([noted], 0.5).done:
                pass

        return note

    async def _note(self, fault: Fault, names: tuple[str, ...]) -> None:
        hands = [hand for name in names if (hand := name.removeprefix(LINES)).startswith("worker")]
        params = {"pid": self.stage.pid(hands[0])} if hands else {}
        [(at,)] = await self._patiently(lambda: self.db.rows(_NOW))
        rows = await self._patiently(lambda: self.db.rows(TOUCHED[fault.touches], params))
        self.course.blows.append(Blow(fault, at, tuple((row[0], row[1]) for row in rows)))
        where = f" ({', '.join(names)})" if names else ""
        self.say(f"{self._clock()}  fault {len(self.course.blows)}: {fault.name}{where}: "
                 f"{len(rows)} runs touched")  # fmt: skip

    # Watching

    async def _progress(self) -> None:
        while True:
            await asyncio.sleep(5)
            await asyncio.to_thread(self.stage.look)
            try:
                by_status = await self._by_status()
                await self._look_for_forgotten()
            except Unavailable:
                self.say(f"{self._clock()}  Postgres is away")
                continue
            found = ", ".join(f"{number} {status}" for status, number in sorted(by_status.items()))
            self.say(f"{self._clock()}  {self.tally.accepted.count} accepted; {found}")

    async def _look_for_forgotten(self) -> None:
        """The safety net must never have work: true at no moment, not only in the end."""
        for (session_id,) in await self.db.rows(_FORGOTTEN):
            self.course.forgotten += 1
            self.tally.complain(f"{self._clock()}: session {session_id} has parked runs, no turn")

    async def _rest(self) -> bool:
        """All runs end within the limit; and soon after the last one no list holds anything."""
        return await self._until(self._all_ended, self.options.rest_s) and await self._until(
            self._all_empty, 5 + 4 * self.options.lease_s
        )

    async def _all_ended(self) -> bool:
        by_status = await self._patiently(self._by_status)
        return not by_status.get("queued") and not by_status.get("running")

    async def _all_empty(self) -> bool:
        return not await asyncio.to_thread(self.stage.entries)

    async def _until(self, true: Callable[[], Awaitable[bool]], limit_s: float) -> bool:
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if await true():
                return True
            await asyncio.sleep(0.2)
        return False

    async def _by_status(self) -> dict[str, int]:
        return dict(await self.db.rows(_BY_STATUS))

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except Unavailable:
                await asyncio.sleep(0.1)

    def _clock(self) -> str:
        return f"{time.monotonic() - self._started:6.1f} s"
