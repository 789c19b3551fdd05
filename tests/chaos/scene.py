"""What all actors of one process of a protocol test share: the database, chance, and the report."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from researchcopilot.core.errors import Unavailable
from researchcopilot.core.settings import DatabaseSettings
from researchcopilot.runtime.batch import Limits
from researchcopilot.storage.db import Database, TryAgain
from researchcopilot.storage.renewal import Renewer

T = TypeVar("T")
# JSON texts that Postgres refuses.
POISON = ('"\\u0000"', "[" * 20_000 + "]" * 20_000)


@dataclass(frozen=True, slots=True)
class Program:
    """What one protocol test does. `group`: members of a group at most."""

    database_url: str
    seed: int = 1
    seconds: float = 8.0
    processes: int = 4
    sessions: int = 5
    group: int = 64
    lease_s: float = 0.03
    drain_s: float = 30.0
    poison: bool = True


@dataclass
class Report:
    """What one process saw. `keys`: the answers to each idempotency key; `made`: every id."""

    counts: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    keys: dict[str, set[tuple[str, ...]]] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)

    def complain(self, words: str) -> None:
        self.counts["complaints"] += 1
        if len(self.complaints) < 20:
            self.complaints.append(words)

    def add(self, other: "Report") -> None:
        self.counts.update(other.counts)
        self.complaints += other.complaints
        self.made |= other.made
        for key, answers in other.keys.items():
            self.keys.setdefault(key, set()).update(answers)


class Scene:
    """One process of a program. `lanes`: groups of one would go one by one, so several at once."""

    def __init__(self, program: Program, number: int) -> None:
        self.program = program
        self.random = random.Random(program.seed * 1000 + number)
        self.report = Report()
        settings = DatabaseSettings(url=program.database_url, pool=20)
        self.db = Database(settings)
        self.renewer = Renewer(settings, 5.0)
        self.renewing = asyncio.Lock()
        self.limits = Limits(max_rows=program.group, patience_s=30.0)
        self.lanes = 4 if program.group == 1 else 1

    def maybe(self, share: float) -> bool:
        return self.random.random() < share

    def again(self, error: BaseException) -> bool:
        """Is this sent again? A deadlock is, and is a fault of the product all the same."""
        if isinstance(error, TryAgain):
            self.report.counts["sent again"] += 1
            if "deadlock" in str(error):
                self.report.complain(f"a deadlock: {error}")
        return isinstance(error, Unavailable)

    async def patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except Unavailable as error:
                self.again(error)
