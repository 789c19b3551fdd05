"""A figure: a name, what was seen in each round, and its median; and how some are seen."""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    unit: str
    values: tuple[float, ...]
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "median": round(self.median, 4),
            "values": [round(value, 4) for value in self.values],
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Measured:
    figure: Figure


def figure(name: str, unit: str, values: Sequence[float], note: str = "") -> Measured:
    return Measured(Figure(name, unit, tuple(values), note))


def resident_mb(pid: int) -> float:
    """What a process has of memory now."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", text)[0]) / 1024


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0 to 1) of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
