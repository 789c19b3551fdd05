"""The loop that makes objects of one kind true: what they ask for is done, and what comes of it
shown.

Level by level, not event by event: an event only says where to look. Each round reads the rows of
all objects that are of interest in one query, does what is missing, and writes a status only where
it differs from what the object shows, at most once a second an object. So it does not matter where
the operator is killed, nor whether there are two of it: the next round finds what is left to do.
No finalizer is ever set. What was deleted unseen is found by listing, at the start and each minute.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import kopf

from researchcopilot.core.errors import Unavailable
from researchcopilot.operator.context import Context
from researchcopilot.operator.kube import KubeRefused
from researchcopilot.operator.metrics import OBJECTS, RESYNCS
from researchcopilot.operator.objects import GROUP, VERSION, Objects, Seen, read
from researchcopilot.operator.ours import Ours, pause_after
from researchcopilot.operator.status import Json, merge
from researchcopilot.runtime.alarm import Alarm
from researchcopilot.runtime.loop import Stop, unless_stopped
from researchcopilot.storage import objects as stored
from researchcopilot.storage.schedules import database_time

log = logging.getLogger(__name__)
BATCH = 500
AT_ONCE = 8
T = TypeVar("T")


class Wanted(NamedTuple):
    """`status` None: leave it as it is. `live`: look again on the next beat. `expires`: when the
    object is to be deleted."""

    status: Json | None
    live: bool
    expires: datetime | None = None


class Work(Protocol[T]):
    """What is special about one kind. Everything in it is safe to repeat."""

    kind: str
    plural: str
    beat_s: float

    async def look(self, due: Sequence[Seen]) -> Mapping[str, T]:
        """The rows of these objects, by uid, in one read."""

    async def settle(self, seen: Seen, found: T | None, now: datetime) -> Wanted:
        """Do what it asks for, if that is not done; what its status should be."""

    async def clear(self) -> None:
        """Do away with what belongs to objects that are gone."""

    async def listed(self, uids: Sequence[str]) -> None:
        """A whole list was seen."""

    def pause_s(self, patch: Json) -> float:
        """How long a status stays before this is changed of it."""


class Projection(Generic[T]):
    def __init__(self, context: Context, work: Work[T]) -> None:
        self._context = context
        self._work = work
        self._objects = Objects()
        self._alarm = Alarm()
        self._resync_at = 0.0
        self._beat_at = 0.0
        self._time: tuple[datetime, float] | None = None
        self._failures = {"list": 0, "round": 0}
        self._namespace = None if context.settings.operator.cluster_wide else context.namespace
        self._ours = Ours(context.kube, work.kind, work.plural, self._namespace)

    def register(self, registry: kopf.OperatorRegistry) -> None:
        """Let kopf tell of events. Nothing is written to the objects by that."""

        @kopf.on.event(GROUP, VERSION, self._work.plural, registry=registry, id=self._work.plural)
        async def told(event: Any, **_: Any) -> None:
            self.note(event["type"], event["object"])

    def note(self, kind: str | None, body: Mapping[str, Any]) -> None:
        """An event: ADDED, MODIFIED, DELETED, or None for what was there already."""
        if kind == "DELETED":
            seen = read(body)
            if seen is not None:
                self._objects.drop(seen.uid)
        else:
            self._objects.take(body)
        self._alarm.ring()

    async def run(self, stop: Stop) -> None:
        """Until asked to stop; then it is left where it is, as if it had been killed."""
        await unless_stopped(self._rounds, stop, 0.0)

    async def _rounds(self) -> None:
        """A list that fails does not keep what is known from going on."""
        while True:
            pause = 0.0
            for name, step in (("list", self._resync), ("round", self._round)):
                try:
                    pause = await step()
                    self._failures[name] = 0
                except (Unavailable, KubeRefused) as error:
                    pause = self._backoff(name)
                    log.warning("%s wait %.1f s: %s", self._work.plural, pause, error)
                except Exception:
                    pause = self._backoff(name)
                    log.exception("%s: a round failed; it is tried again", self._work.plural)
            await self._alarm.sleep(pause)

    def _backoff(self, step: str) -> float:
        """Each step has a patience of its own: a round that goes well says nothing of a list."""
        self._failures[step] += 1
        pause = pause_after(self._failures[step])
        self._resync_at = max(self._resync_at, time.monotonic() + pause)
        return pause

    async def _ask_time(self) -> datetime:
        now = await database_time(self._context.db)
        self._time = (now, time.monotonic())
        return now

    def now(self) -> datetime:
        """The database's time, as it must be by now."""
        assert self._time is not None, "each round asks for it first"
        then, mark = self._time
        return then + timedelta(seconds=time.monotonic() - mark)

    # Lists

    async def _resync(self) -> float:
        """Compare the whole of the objects with the whole of the rows, if it is time for it."""
        if time.monotonic() < self._resync_at:
            return 0.0
        context, work = self._context, self._work
        before, began = await self._ask_time(), time.monotonic()
        listed: set[str] = set()
        async for body in self._ours.all():
            if (seen := read(body)) is not None:
                listed.add(seen.uid)
                self._objects.take(body)
        for seen in self._objects:
            if seen.uid not in listed and seen.told_at < began:
                self._objects.drop(seen.uid)
        lost = await stored.vanished(
            context.db,
            work.kind,
            sorted(listed),
            cluster=context.settings.operator.cluster,
            namespace=self._namespace,
            before=before,
        )
        if lost:
            log.info("%d %s were deleted unseen", lost, work.plural)
        await work.clear()
        await stored.forget(context.db, context.settings.operator.cluster)
        await work.listed([seen.uid for seen in self._objects])
        self._objects.dirty.update(seen.uid for seen in self._objects)
        self._resync_at = time.monotonic() + context.settings.operator.resync_s
        RESYNCS.labels(work.kind).inc()
        return 0.0

    # Rounds

    async def _round(self) -> float:
        """Deal with what is new or due; seconds until there may be more."""
        if self._time is None:
            await self._ask_time()
        await self._bury()
        due = self._due()
        for start in range(0, len(due), BATCH):
            await self._settle(due[start : start + BATCH])
        OBJECTS.labels(self._work.kind).set(len(self._objects))
        return self._pause()

    def _pause(self) -> float:
        mark, now = time.monotonic(), self.now()
        until = [self._resync_at - mark]
        for seen in self._objects:
            if seen.uid in self._objects.dirty:
                until.append(seen.not_before - mark)
            if seen.live:
                until.append(self._beat_at - mark)
            if seen.expires is not None:
                until.append(max(seen.not_before - mark, (seen.expires - now).total_seconds()))
        return max(0.01, min(until))

    async def _bury(self) -> None:
        # Also what goes meanwhile: one that comes after it may have its name.
        while gone := list(self._objects.gone):
            await stored.gone(self._context.db, gone)
            await self._work.clear()
            self._objects.gone.difference_update(gone)

    def _due(self) -> list[Seen]:
        mark, now = time.monotonic(), self.now()
        beat = mark >= self._beat_at
        if beat:
            self._beat_at = mark + self._work.beat_s
        return [
            seen
            for seen in self._objects
            if mark >= seen.not_before
            and (
                seen.uid in self._objects.dirty
                or (beat and seen.live)
                or (seen.expires is not None and seen.expires <= now)
            )
        ]

    async def _settle(self, due: Sequence[Seen]) -> None:
        found = await self._work.look(due)
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(seen: Seen) -> None:
            async with slots:
                await self._one(seen, found.get(seen.uid))

        await asyncio.gather(*(one(seen) for seen in due))

    async def _one(self, seen: Seen, found: T | None) -> None:
        """One object; whatever it ends in, the others are not touched by it."""
        # Before it is read: what is told of it from now on makes it dirty again.
        self._objects.dirty.discard(seen.uid)
        version = seen.version
        try:
            wanted = await self._work.settle(seen, found, self.now())
            seen.live, seen.expires = wanted.live, wanted.expires
            if seen.version == version:  # else it was told of something newer: the next round
                await self._write(seen, wanted)
            seen.failures = 0
        except (KubeRefused, Unavailable) as error:
            self._later(seen, error)
        except Exception as error:
            log.exception("%s %s/%s failed", self._work.kind, seen.namespace, seen.name)
            self._later(seen, error)

    def _later(self, seen: Seen, error: Exception) -> None:
        seen.failures += 1
        pause = pause_after(seen.failures)
        seen.not_before = time.monotonic() + pause
        self._objects.dirty.add(seen.uid)
        log.warning(
            "%s %s/%s is tried again in %.1f s: %s",
            self._work.kind, seen.namespace, seen.name, pause, error,
        )  # fmt: skip

    async def _write(self, seen: Seen, wanted: Wanted) -> None:
        patch = merge(seen.status, wanted.status) if wanted.status is not None else {}
        if patch:
            await self._show(seen, patch)
        elif wanted.expires is not None and wanted.expires <= self.now():
            await self._ours.delete(seen)
            seen.expires = None

    async def _show(self, seen: Seen, patch: Json) -> None:
        if time.monotonic() < self._ours.quiet_until:
            seen.not_before = self._ours.quiet_until
            self._objects.dirty.add(seen.uid)
            return
        body = await self._ours.show(seen, patch)
        seen.not_before = time.monotonic() + self._work.pause_s(patch)
        generation = seen.generation
        if body is not None:
            self._objects.take(body)
        if seen.generation == generation:  # our own words are no news
            self._objects.dirty.discard(seen.uid)
