"""Objects of one kind as they were last seen: what events and lists have told, put into order.

Events come twice, late, or not at all, and a list can be older than an event: what is older than
what is known is dropped, and a uid that was deleted never comes back. A newer one of the same name
says that the one before was deleted, though nobody has told. Nothing here decides anything; nothing
here has to survive.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from researchcopilot.core.ids import parse_id

GROUP, VERSION = "researchcopilot.dev", "v1alpha1"
MOST_DEAD = 20_000
WRITES_S = 1.0  # a status is written so often at most


@dataclass(slots=True)
class Seen:
    """`version` orders what was told of one object. `not_before` (monotonic) is when its status may
    be written next; `live`: its rows are to be looked at on each beat."""

    uid: str
    namespace: str
    name: str
    version: int
    generation: int
    spec: Mapping[str, Any]
    status: Mapping[str, Any]
    deleting: bool
    told_at: float
    live: bool = True
    not_before: float = 0.0
    failures: int = 0
    expires: datetime | None = None


def read(body: Mapping[str, Any]) -> Seen | None:
    """What an object says; None for something that is none."""
    meta = body.get("metadata") or {}
    uid = parse_id(str(meta.get("uid")))
    namespace, name = meta.get("namespace"), meta.get("name")
    if uid is None or not namespace or not name:
        return None
    version = str(meta.get("resourceVersion") or "")
    return Seen(
        uid=uid,
        namespace=namespace,
        name=name,
        version=int(version) if version.isascii() and version.isdigit() else 0,
        generation=int(meta.get("generation") or 1),
        spec=body.get("spec") or {},
        status=body.get("status") or {},
        deleting=bool(meta.get("deletionTimestamp")),
        told_at=time.monotonic(),
    )


@dataclass(slots=True)
class Objects:
    """By uid. `dirty`: something about them is new. `gone`: deleted, and that is not dealt with."""

    dirty: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    _known: dict[str, Seen] = field(default_factory=dict)
    _named: dict[tuple[str, str], str] = field(default_factory=dict)
    _dead: dict[str, None] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Seen]:
        return iter(list(self._known.values()))

    def __len__(self) -> int:
        return len(self._known)

    def get(self, uid: str) -> Seen | None:
        return self._known.get(uid)

    def take(self, body: Mapping[str, Any]) -> Seen | None:
        """What somebody told of an object; the object if it is there and this is not older."""
        seen = read(body)
        if seen is None or seen.uid in self._dead:
            return None
        if seen.uid not in self._known:
            self._name(seen)
        before = self._known.setdefault(seen.uid, seen)
        if seen.version < before.version:
            return None
        said = (before.generation, before.status, before.deleting)
        if seen.generation != before.generation:
            # A pause between two statuses is none of what a person has just changed.
            before.not_before = min(before.not_before, time.monotonic() + WRITES_S)
        before.version, before.generation = seen.version, seen.generation
        before.spec, before.status = seen.spec, seen.status
        before.deleting, before.told_at = before.deleting or seen.deleting, seen.told_at
        if before is seen or said != (before.generation, before.status, before.deleting):
            self.dirty.add(seen.uid)
        if seen.deleting:
            self.gone.add(seen.uid)
        return before

    def _name(self, seen: Seen) -> None:
        """It has this name from now on, unless a newer one has it."""
        before = self._known.get(self._named.get((seen.namespace, seen.name), ""))
        if before is None or before.version < seen.version:
            self._named[seen.namespace, seen.name] = seen.uid
            if before is not None:
                self.drop(before.uid)

    def drop(self, uid: str) -> None:
        """It was deleted."""
        seen = self._known.pop(uid, None)
        if seen is not None and self._named.get((seen.namespace, seen.name)) == uid:
            del self._named[seen.namespace, seen.name]
        self.dirty.discard(uid)
        self.gone.add(uid)
        self._dead[uid] = None
        while len(self._dead) > MOST_DEAD:
            del self._dead[next(iter(self._dead))]
