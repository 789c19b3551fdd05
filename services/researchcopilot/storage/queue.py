"""The queue on Redis: lists of ids, each move one command or one script. A hint, never the truth.

    queue:<queue>                       waiting, first in first out
    queue:<queue>:processing:<worker>   in the hands of one worker
    queue:<queue>:delayed               ZSET, score = due time in seconds by Redis' clock
    queue:<queue>:done                  the last ended runs, off by default
    queue:<queue>:probe, :probed        the mark under way, and the newest one taken
    workers                             ZSET of live workers, score = last beat
    epoch                               a random word: gone after FLUSHALL

An entry is `<workspace_id>.<run_id>`; a probe is `probe.<microseconds>`. What a server that went
away raises becomes Unavailable; every verb is safe to repeat, at worst an id stands twice, which
the claim sorts out.
"""

import re
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript

from researchcopilot.core.errors import Unavailable
from researchcopilot.core.models import Entry
from researchcopilot.core.settings import RedisSettings
from researchcopilot.storage.lua import load
from researchcopilot.storage.told import told as _told

BLOCK_S = 1.0
PINGS = (5, 10)  # a subscribed connection is asked after so many seconds without a word
SILENT = 15  # and given up after so many
PROBE = "probe."
WAKE = "wake"  # the channel of those who sleep until something is due
SCHEDULES = "schedules"
_ENTRY = re.compile(r"[1-9][0-9]{0,9}\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_GLOB = re.compile(r"[*?\[\]\\]")
_PROBE = re.compile(r"probe\.[0-9]{1,16}")


@dataclass(frozen=True, slots=True)
class Depths:
    """Entries of one queue, now. `processing` is the sum over all workers."""

    waiting: int
    processing: int
    delayed: int
    done: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What kind of server this is. `eviction` is None where CONFIG is not allowed."""

    version: str
    role: str
    has_lmove: bool
    eviction: str | None


@dataclass(frozen=True, slots=True)
class DueMoved:
    """What `due` did, in seconds: how late each entry was that was moved; when the next is due
    (None: the delayed set is empty). `overdue`: due, and more than were asked for."""

    late_s: tuple[float, ...]
    next_s: float | None
    overdue: int


def parse_entry(text: str) -> Entry | None:
    """None for what is no entry of ours (a probe, or something put there by hand).

    Strict: an id that Postgres would refuse, or give back in another form, would poison the claim
    of all that were taken with it.
    """
    if _ENTRY.fullmatch(text) is None:
        return None
    workspace, _, run_id = text.partition(".")
    return Entry(int(workspace), run_id)


def parse_probe(text: str) -> int | None:
    """The microseconds of a probe; None for anything else."""
    return int(text.removeprefix(PROBE)) if _PROBE.fullmatch(text) else None


class Queue:
    """The keys of all queues under one prefix. Open it once for each event loop."""

    def __init__(self, settings: RedisSettings) -> None:
        self.settings = settings
        self._redis = self._client(max_connections=32)
        self._blocking: dict[str, Redis] = {}
        self._scripts = {
            verb: self._redis.register_script(load(verb))
            for verb in ("take", "ack", "release", "later", "delay", "due", "probe", "probed")
        }

    def _client(self, max_connections: int) -> Redis:
        return Redis.from_url(
            self.settings.url,
            decode_responses=True,
            socket_connect_timeout=2,
            socket_timeout=BLOCK_S + 5,
            retry=Retry(NoBackoff(), 0),
            max_connections=max_connections,
        )

    async def open(self) -> None:
        """Nothing to do: connections are made when they are needed."""

    async def close(self) -> None:
        for client in (self._redis, *self._blocking.values()):
            await client.aclose()

    # Names

    def key(self, name: str) -> str:
        return self.settings.prefix + name

    def waiting(self, queue: str) -> str:
        return self.key(f"queue:{queue}")

    def processing(self, queue: str, worker_id: str) -> str:
        return self.key(f"queue:{queue}:processing:{worker_id}")

    def delayed(self, queue: str) -> str:
        return self.key(f"queue:{queue}:delayed")

    # Verbs

    async def push(self, queue: str, entries: Sequence[Entry]) -> None:
        """To the tail, in order."""
        if entries:
            async with _told():
                await _int(self._redis.rpush(self.waiting(queue), *map(str, entries)))

    async def push_head(self, queue: str, entries: Sequence[Entry]) -> None:
        """To the head; the first given is the first to be taken."""
        if entries:
            async with _told():
                texts = [str(entry) for entry in reversed(entries)]
                await _int(self._redis.lpush(self.waiting(queue), *texts))

    async def delay(self, queue: str, waits: Sequence[tuple[Entry, float]]) -> None:
        """Into the delayed set, each due after its wait in seconds."""
        await self._run("delay", [self.delayed(queue)], [*self._woken(queue), *_pairs(waits)])

    async def wait(self, queue: str, worker_id: str) -> str | None:
        """The oldest entry, moved into this worker's hands; None after a second without one.

        On a connection of its own for each queue. If its answer is lost, the entry stands in the
        worker's list; the worker compares that list with its memory.
        """
        client = self._blocking.get(queue)
        if client is None:
            client = self._blocking[queue] = self._client(max_connections=1)
        async with _told():
            return cast(
                str | None,
                await client.blmove(
                    self.waiting(queue), self.processing(queue, worker_id), int(BLOCK_S),
                    "LEFT", "RIGHT",
                ),
            )  # fmt: skip

    async def take(self, queue: str, worker_id: str, n: int) -> list[str]:
        """Up to n more entries, without waiting."""
        keys = [self.waiting(queue), self.processing(queue, worker_id)]
        return cast(list[str], await self._run("take", keys, [n]))

    async def ack(self, queue: str, worker_id: str, entries: Sequence[str]) -> None:
        """Out of this worker's hands."""
        keys = [self.processing(queue, worker_id), self.key(f"queue:{queue}:done")]
        await self._run("ack", keys, [self.settings.done_kept, *entries])

    async def drop(self, queue: str, worker_id: str, entries: Sequence[str]) -> None:
        """Out of this worker's hands, and not to be seen in `done`: it was not this one's run."""
        keys = [self.processing(queue, worker_id), self.key(f"queue:{queue}:done")]
        await self._run("ack", keys, [0, *entries])

    async def release(self, queue: str, worker_id: str, entries: Sequence[str]) -> None:
        """From this worker's hands to the head, oldest first."""
        if entries:
            keys = [self.processing(queue, worker_id), self.waiting(queue)]
            await self._run("release", keys, list(entries))

    async def later(self, queue: str, worker_id: str, waits: Sequence[tuple[Entry, float]]) -> None:
        """From this worker's hands into the delayed set."""
        keys = [self.processing(queue, worker_id), self.delayed(queue)]
        await self._run("later", keys, [*self._woken(queue), *_pairs(waits)])

    async def due(self, queue: str, limit: int = 500) -> DueMoved:
        """What is due, from the delayed set to the tail."""
        wait, overdue, *late = await self._run(
            "due", [self.delayed(queue), self.waiting(queue)], [limit]
        )
        late_s = tuple(microseconds / 1e6 for microseconds in late)
        return DueMoved(late_s, None if wait < 0 else wait / 1e6, overdue)

    # Wake-ups: who sleeps until a time is told of an earlier one. A lost one costs a pause.

    async def wake(self, what: str) -> None:
        """Wake those who listen to WAKE; for `queue:<queue>` the scripts do it."""
        async with _told():
            await cast(Awaitable[Any], self._redis.publish(self.key(WAKE), what))

    def _woken(self, queue: str) -> tuple[str, str]:
        return self.key(WAKE), f"queue:{queue}"

    # Hands and depths

    async def in_hands(self, queue: str, worker_id: str) -> list[str]:
        """What stands in a worker's processing list, oldest first."""
        async with _told():
            found = self._redis.lrange(self.processing(queue, worker_id), 0, -1)
            return cast(list[str], await cast(Awaitable[Any], found))

    async def hold_anything(self, hands: Sequence[tuple[str, str]]) -> list[bool]:
        """For each (queue, worker_id): is anything in its processing list?"""
        lengths = await self.all([("LLEN", self.processing(*hand)) for hand in hands])
        return [length > 0 for length in lengths]

    async def workers(self) -> list[str]:
        """Who is counted, living or not."""
        async with _told():
            return [str(one) for one in await self._redis.zrange(self.key("workers"), 0, -1)]

    async def all_hands(self) -> list[tuple[str, str]]:
        """(queue, worker_id) of every processing list. Walks all keys: for a rebuild."""
        names = _GLOB.sub(r"\\\g<0>", self.key("queue:")) + "*:processing:*"
        start = len(self.key("queue:"))
        async with _told():
            keys = [str(key) async for key in self._redis.scan_iter(match=names, count=1000)]
        found = [key[start:].rpartition(":processing:") for key in keys]
        return [(queue, worker_id) for queue, _, worker_id in found]

    async def forget(self, hands: Sequence[tuple[str, str]]) -> None:
        """These processing lists, with all that stands in them."""
        if hands:
            async with _told():
                await self._redis.unlink(*(self.processing(*hand) for hand in hands))

    async def beat(self, worker_id: str) -> None:
        """This worker lives: it is counted, and its processing lists are."""
        async with _told():
            seconds, microseconds = await self._redis.time()
            await self._redis.zadd(self.key("workers"), {worker_id: seconds + microseconds / 1e6})

    async def leave(self, *worker_ids: str) -> None:
        """These workers are no longer counted."""
        if worker_ids:
            async with _told():
                await self._redis.zrem(self.key("workers"), *worker_ids)

    async def depths(self, queue: str) -> Depths:
        workers = await self.workers()
        waiting, delayed, done, *processing = await self.all(
            [
                ("LLEN", self.waiting(queue)),
                ("ZCARD", self.delayed(queue)),
                ("LLEN", self.key(f"queue:{queue}:done")),
                *(("LLEN", self.processing(queue, worker_id)) for worker_id in workers),
            ]
        )
        return Depths(waiting, sum(processing), delayed, done)

    async def ping(self) -> None:
        async with _told():
            await cast(Awaitable[Any], self._redis.ping())

    # Cancellations

    async def tell(self, asked: Sequence[tuple[str, str]]) -> None:
        """Publish to each (worker_id, run_id) that the run was asked to stop."""
        await self.all([("PUBLISH", self.key(f"cancel:{worker}"), run) for worker, run in asked])

    async def told(self, worker_id: str) -> AsyncGenerator[str | None, None]:
        """Run ids that were asked to stop, as they are published; see `published`."""
        async for run_id in self.published(f"cancel:{worker_id}"):
            yield run_id

    async def published(self, channel: str) -> AsyncGenerator[str | None, None]:
        """What is published there, as it comes; None once it is listened to, and for each second
        without a word. Ends with Unavailable.

        A connection that nothing comes back on is noticed by pings: TCP alone would wait for ever.
        """
        # Nothing is ignored: with RESP3 the client takes a pong for the news of a subscription.
        async with _told(), self._redis.pubsub() as pubsub:
            await pubsub.subscribe(self.key(channel))
            yield None
            quiet = 0
            while quiet < SILENT:
                message = await pubsub.get_message(timeout=BLOCK_S)
                quiet = quiet + 1 if message is None else 0
                if message is None or message["type"] == "message":
                    yield None if message is None else str(message["data"])
                if quiet in PINGS:
                    await pubsub.ping()
        raise Unavailable("Redis does not answer: no word from it on a subscribed connection")

    # Probes

    async def probe(self, queue: str, microseconds: int, keep_s: int = 3600) -> bool:
        """Put a mark with the database's time at the tail; False if one is under way."""
        keys = [self.waiting(queue), self.key(f"queue:{queue}:probe")]
        return bool(await self._run("probe", keys, [f"{PROBE}{microseconds}", keep_s]))

    async def probed(self, queue: str, worker_id: str, probe: str) -> None:
        """A worker has taken this mark."""
        keys = [
            self.processing(queue, worker_id),
            self.key(f"queue:{queue}:probe"),
            self.key(f"queue:{queue}:probed"),
        ]
        await self._run("probed", keys, [probe, probe.removeprefix(PROBE)])

    async def last_probed(self, queue: str) -> int | None:
        """The newest mark that was taken (microseconds of the database's time), or None."""
        async with _told():
            value = await self._redis.get(self.key(f"queue:{queue}:probed"))
            return int(value) if value else None

    # Identity and rebuild

    async def facts(self) -> Facts:
        """What start-up checks look at."""
        server, replication, lmove = await self.all(
            [("INFO", "server"), ("INFO", "replication"), ("COMMAND", "INFO", "LMOVE")]
        )
        [policy] = await self.all([("CONFIG", "GET", "maxmemory-policy")], fenced=True)
        return Facts(
            version=str(server.get("valkey_version") or server.get("redis_version")),
            role=str(replication.get("role")),
            has_lmove=any(lmove.values()) if isinstance(lmove, dict) else any(lmove),
            eviction=policy.get("maxmemory-policy") if isinstance(policy, dict) else None,
        )

    async def identity(self) -> tuple[str | None, str, str]:
        """(epoch key, master_replid, run_id): any change means wiped, replaced or restored."""
        epoch, replication, server = await self.all(
            [("GET", self.key("epoch")), ("INFO", "replication"), ("INFO", "server")]
        )
        return epoch, str(replication.get("master_replid")), str(server.get("run_id"))

    async def mark_epoch(self, epoch: str) -> None:
        async with _told():
            await self._redis.set(self.key("epoch"), epoch)

    async def clear(self, queues: Sequence[str]) -> None:
        """Delete the lists and sets of these queues; hands stay, their workers compare them."""
        names = [
            name
            for queue in queues
            for name in (
                self.waiting(queue),
                self.delayed(queue),
                self.key(f"queue:{queue}:probe"),
                self.key(f"queue:{queue}:probed"),
            )
        ]
        if names:  # before the first worker comes there is none
            async with _told():
                await self._redis.unlink(*names)

    async def all(self, commands: Sequence[tuple[str, ...]], *, fenced: bool = False) -> list[Any]:
        """Several commands in one round trip; not a transaction.

        `fenced`: answers that refuse ("equal or smaller") are returned, not raised.
        """
        async with _told(), self._redis.pipeline(transaction=False) as pipe:
            for command in commands:
                await cast(Awaitable[Any], pipe.execute_command(*command))
            return await pipe.execute(raise_on_error=not fenced)

    async def _run(self, verb: str, keys: list[str], args: Sequence[Any]) -> Any:
        script: AsyncScript = self._scripts[verb]
        async with _told():
            return await script(keys=keys, args=args)


def _pairs(waits: Sequence[tuple[Entry, float]]) -> list[str]:
    return [text for entry, wait in waits for text in (str(entry), f"{wait:.6f}")]


async def _int(answer: Any) -> int:
    return int(await cast(Awaitable[Any], answer))
