"""The acts of `make chaos`, one after the other, each on servers of its own: all parts under every
fault (`runs`), the moves alone under real concurrency (`moves`), the ticks of schedules (`ticks`).

Each gives lines of the last table, and tells in its own words what was broken.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.chaos import protocol, ticks, watch
from tests.chaos.scene import Program

# Seconds of the short acts in a test of full length; they are scaled with it.
MOVES_S, TICKS_S, LEAST_S = 40.0, 20.0, 4.0
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Act:
    """A line of the last table. `text`: what a person reads before it."""

    name: str
    did: str
    broken: int
    seconds: float
    text: str


def moves(seed: int, share: float) -> Iterator[Act]:
    """Groups of one go one by one, large ones deadlock if they can: half of the time each."""
    for group in (1, 64):
        began = time.monotonic()
        program = Program("", seed=seed, seconds=max(LEAST_S, share * MOVES_S / 2), group=group)
        report, broken, text = protocol.rehearse(program)
        claims = report.counts["claim: claimed"]
        did = f"{claims:,} claims in groups of at most {group}, {program.processes} processes"
        yield Act("moves", did, broken, time.monotonic() - began, text)


def ticks_(seed: int, share: float) -> Iterator[Act]:
    began = time.monotonic()
    for name, report in ticks.rehearse(max(LEAST_S, share * TICKS_S), seed=seed):
        faults = sum(report.faults.values())
        did = f"{report.ticks:,} ticks, {faults} faults: {name}"
        broken = len(report.findings)
        yield Act("ticks", did, broken, time.monotonic() - began, ticks.told(name, report))
        began = time.monotonic()


def table(acts: list[Act]) -> list[str]:
    rows = [
        [act.name, act.did, f"{act.seconds:,.0f} s",
         f"{act.broken} BROKEN" if act.broken else "nothing broken"]
        for act in acts
    ]  # fmt: skip
    return watch.columns(rows)
