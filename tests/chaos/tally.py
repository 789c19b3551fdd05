"""What the driver knows: every accepted id, on disk before it counts, and what went wrong.

A chaos test that loses an id in its own memory would prove nothing: each accepted id is written
to a file and synced, and the check at the end reads the file.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType


class Accepted:
    """The file of accepted ids. Use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = asyncio.Lock()
        self.count = 0

    def __enter__(self) -> "Accepted":
        self._file = self._path.open("ab", buffering=0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    async def add(self, run_ids: Sequence[str]) -> None:
        """Counted when this returns, not before."""
        async with self._lock:
            await asyncio.to_thread(self._write, run_ids)
            self.count += len(run_ids)

    def _write(self, run_ids: Sequence[str]) -> None:
        self._file.write("".join(f"{run_id}\n" for run_id in run_ids).encode())
        os.fsync(self._file.fileno())

    def read(self) -> list[str]:
        return self._path.read_text().split()


@dataclass
class Tally:
    """Counts for the table; `keys`: which runs each key was answered with; `complaints`: faults
    of the product that were seen from outside."""

    accepted: Accepted
    counts: Counter[str] = field(default_factory=Counter)
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)

    def complain(self, words: str) -> None:
        self.complaints.append(words)

    async def accept(self, key: str | None, run_ids: tuple[str, ...], *, replayed: bool) -> None:
        """An answer 202: one key has one answer, however often it is asked."""
        before = self.keys.get(key, run_ids) if key else run_ids
        if before != run_ids:
            self.complain(f"key {key} was answered with {before} and then with {run_ids}")
        if key and key in self.keys:
            if not replayed:
                self.complain(f"key {key} was answered again, and not as a repetition")
            return
        await self.accepted.add(run_ids)
        if key:
            self.keys[key] = run_ids
        self.counts["replayed after a lost answer"] += replayed
