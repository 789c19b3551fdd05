"""The world of a model test: all rows that tell of runs, as they stand, and how two worlds differ.

A world can be told beforehand too: then its times are `At(seconds)`, that many seconds after the
moment of the statement, which lies between the two looks.
"""

import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

Row = dict[str, Any]
RUNS = b"""
    SELECT run_id, seq, workspace_id, session_id, agent, queue, serial, status, parked, run_at,
           ready_at, hinted_at, deadline, claim_no, attempts, max_attempts, losses, claim_id,
           worker_id, lease_until, unique_key, replay_of, resolved_by, discarded_at, follows,
           cancel_requested_at, result, error, created_at, started_at, finished_at
    FROM runs WHERE xmin::text::bigint >= %(since)s ORDER BY seq"""
CLAIMS = b"""
    SELECT run_id, claim_no, worker_id, claim_id, started_at, finished_at, outcome, by_worker,
           error FROM claims WHERE xmin::text::bigint >= %(since)s"""
COUNTS = b"""
    SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM claims),
           (SELECT count(*) FROM idempotency_keys), (SELECT count(*) FROM sessions),
           pg_snapshot_xmin(pg_current_snapshot())::text::bigint, clock_timestamp()"""
KEYS = b"SELECT workspace_id, route, key, body_hash, run_ids::text[] FROM idempotency_keys"
SESSIONS = b"SELECT session_id, workspace_id FROM sessions"
TERMINAL = ("succeeded", "failed", "cancelled")


class Unjudgeable(Exception):
    """Something became due in the very moment of a statement: nobody can say what is right."""


@dataclass(frozen=True, slots=True)
class At:
    """So many seconds after the moment of the statement."""

    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Error:
    """An error of this type; its words are not looked at."""

    type: str


@dataclass
class World:
    now: datetime  # of this look
    runs: dict[str, Row] = field(default_factory=dict)
    claims: dict[tuple[str, int], Row] = field(default_factory=dict)
    keys: dict[tuple[int, str, str], tuple[str, list[str]]] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)
    next_xid: int = 0

    def copy(self) -> "World":
        other = copy.copy(self)
        other.runs = {key: dict(row) for key, row in self.runs.items()}
        other.claims = {key: dict(row) for key, row in self.claims.items()}
        other.keys, other.sessions = dict(self.keys), dict(self.sessions)
        return other


class Observer:
    """A connection of the test's own, which nothing cuts."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True, prepare_threshold=2)
        self.connection.adapters.register_loader("uuid", TextLoader)
        self._cursor = self.connection.cursor(row_factory=dict_row)

    def dicts(self, query: bytes, params: dict[str, Any] | None = None) -> list[Row]:
        return self._cursor.execute(query, params).fetchall()

    def rows(self, query: bytes, params: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        return self.connection.execute(query, params).fetchall()

    def do(self, query: bytes, params: dict[str, Any] | None = None) -> None:
        self.connection.execute(query, params)

    def now(self) -> datetime:
        [(now,)] = self.rows(b"SELECT clock_timestamp()")
        assert isinstance(now, datetime)
        return now

    def look(self, last: World | None = None) -> World:
        """All rows; those of `last` that no transaction has written since. Nobody acts now."""
        since = {"since": last.next_xid if last else 0}
        [(*counts, next_xid, now)] = self.rows(COUNTS)
        world = World(now, dict(last.runs), dict(last.claims)) if last else World(now)
        world.next_xid = next_xid
        world.runs |= {row["run_id"]: row for row in self.dicts(RUNS, since)}
        world.claims |= {(r["run_id"], r["claim_no"]): r for r in self.dicts(CLAIMS, since)}
        if last is not None and [len(last.keys), len(last.sessions)] == counts[2:]:
            world.keys, world.sessions = last.keys, last.sessions
        else:
            world.keys = {(w, r, k): (body, made) for w, r, k, body, made in self.rows(KEYS)}
            world.sessions = dict(self.rows(SESSIONS))
        if [len(world.runs), len(world.claims)] != counts[:2]:
            return self.look()  # some are gone
        return world


# Comparing


def differences(wanted: World, found: World, since: datetime) -> list[str]:
    """What is not as it was told; `since`: the statement came after that."""
    return [
        *_compare("run", wanted.runs, found.runs, since, found.now),
        *_compare("claim", wanted.claims, found.claims, since, found.now),
        *(_other("key", wanted.keys, found.keys)),
        *(_other("session", wanted.sessions, found.sessions)),
    ]


def _other(kind: str, wanted: dict[Any, Any], found: dict[Any, Any]) -> list[str]:
    return [
        f"{kind} {key}: {found.get(key, 'none')}, not {wanted.get(key, 'none')}"
        for key in {**wanted, **found}
        if wanted.get(key) != found.get(key)
    ]


def _compare(
    kind: str, wanted: dict[Any, Row], found: dict[Any, Row], since: datetime, until: datetime
) -> list[str]:
    words = [f"{kind} {key} is gone" for key in wanted.keys() - found.keys()]
    words += [f"{kind} {key} came from nowhere" for key in found.keys() - wanted.keys()]
    for key in wanted.keys() & found.keys():
        mine, theirs = wanted[key], found[key]
        if mine is theirs or mine == theirs:
            continue
        words += [
            f"{kind} {key}: {name} is {theirs[name]}, not {value}"
            for name, value in mine.items()
            if value != theirs[name] and not _is(value, theirs[name], since, until)
        ]
    return words


def _is(wanted: Any, found: Any, since: datetime, until: datetime) -> bool:
    if isinstance(wanted, At) and isinstance(found, datetime):
        later = timedelta(seconds=wanted.seconds)
        return since + later <= found <= until + later + timedelta(milliseconds=1)
    if isinstance(wanted, Error) and isinstance(found, dict):
        return found.get("type") == wanted.type
    return False
