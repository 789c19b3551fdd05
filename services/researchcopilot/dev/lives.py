"""The life of a run as it happens, from what the api says of it and from the ledger of claims.

`events` is pure: the whole life up to now, in order. `Watcher` looks again and again, and tells
what it has not told before; so nothing is missed, however short it was.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from researchcopilot.core.states import TERMINAL
from researchcopilot.dev.client import Client
from researchcopilot.dev.processes import StackError
from researchcopilot.storage.db import Database
from researchcopilot.storage.overview import LedgerRow, claims_of

LOOK_EVERY = 0.02
# Outcomes of a claim that do not count as an attempt: it was handed back, or its worker died.
REFUNDED = ("release", "lost")


class NotInTime(StackError):
    """A run did not get so far within the limit."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A run that somebody waits for; `label` is its short name here."""

    label: str
    run_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a life. `ms` since the run was accepted; `took_ms` of the claim that ended."""

    label: str
    state: str
    ms: float
    pid: int | None = None
    attempt: int | None = None
    took_ms: float | None = None
    note: str = ""


def events(asked: Asked, run: Mapping[str, Any], claims: Sequence[LedgerRow]) -> list[Event]:
    """What happened to a run up to now, in order."""
    born = datetime.fromisoformat(run["created_at"])
    found = [Event(asked.label, "queued", 0.0)]
    attempt = 0
    for claim in claims:
        attempt += 1
        begun = _ms(born, claim.started_at)
        found.append(Event(asked.label, "running", begun, claim.pid, attempt))
        if claim.finished_at is not None and claim.outcome is not None:
            ended = _ms(born, claim.finished_at)
            state, note = _after(claim.outcome, run)
            found.append(Event(asked.label, state, ended, claim.pid, attempt, ended - begun, note))
            attempt -= claim.outcome in REFUNDED
    return found


def _after(outcome: str, run: Mapping[str, Any]) -> tuple[str, str]:
    """The state that a claim left the run in, and why, if that is not plain."""
    if outcome == "lost":
        return "queued", "its worker died; the attempt is refunded"
    if outcome == "release":
        return "queued", "handed back by a worker that stops"
    if outcome == "retry":
        return "queued", "it failed and is tried again"
    error = run.get("error") or {}
    return outcome, str(error.get("message", "")) if outcome == "failed" else ""


def _ms(start: datetime, end: datetime) -> float:
    return (end - start).total_seconds() * 1000


class Watcher:
    """Follows runs over HTTP. `tell` is given each new event; `check` may raise on trouble."""

    def __init__(
        self,
        client: Client,
        database: Database,
        runner: asyncio.Runner,
        tell: Callable[[Event], None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._database = database
        self._runner = runner
        self._tell = tell
        self._check = check
        self._told: dict[str, int] = {}

    def ended(self, asked: Sequence[Asked], seconds: float) -> dict[str, dict[str, Any]]:
        """Follow until all are terminal; the runs by label. NotInTime if that takes longer."""
        return self._follow(asked, seconds, lambda run: run["status"] in TERMINAL)

    def begun(self, asked: Asked, seconds: float) -> dict[str, Any]:
        """Follow until a worker executes it (or has)."""
        found = self._follow([asked], seconds, lambda run: run["status"] != "queued")
        return found[asked.label]

    def claims(self, asked: Sequence[Asked]) -> list[LedgerRow]:
        ids = [one.run_id for one in asked]
        return self._runner.run(claims_of(self._database, ids))

    def _follow(
        self,
        asked: Sequence[Asked],
        seconds: float,
        enough: Callable[[Mapping[str, Any]], bool],
    ) -> dict[str, dict[str, Any]]:
        until = time.monotonic() + seconds
        while True:
            runs = {one.label: self._client.get(f"/v1/runs/{one.run_id}") for one in asked}
            self._tell_news(asked, runs)
            if all(enough(run) for run in runs.values()):
                return runs
            self._check()
            if time.monotonic() > until:
                states = ", ".join(f"{label}: {run['status']}" for label, run in runs.items())
                raise NotInTime(f"After {seconds:g} s not every run was so far ({states}).")
            time.sleep(LOOK_EVERY)

    def _tell_news(self, asked: Sequence[Asked], runs: Mapping[str, Mapping[str, Any]]) -> None:
        ledger = self.claims(asked)
        news: list[Event] = []
        for one in asked:
            mine = [claim for claim in ledger if claim.run_id == one.run_id]
            life = events(one, runs[one.label], mine)
            news += life[self._told.get(one.run_id, 0) :]
            self._told[one.run_id] = len(life)
        for event in sorted(news, key=lambda event: event.ms):
            self._tell(event)
