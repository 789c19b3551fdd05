"""`python -m tests.chaos.zones [--share 0.1] [--processes 2]`: ticks of cron lines around every
change of local time of every zone, 2000 to 2040, against the reference of tests/unit.

Around a change the ticks of some fixed lines and of some drawn ones are compared, from the start
of the window on, and from moments in the middle, where a scheduler may have been started. Zones
that only have another name for the same changes are looked at once. Exit code 1 if any differs.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timedelta

from tests.unit.ticks_reference import Change, Line, Window, changes, line, some_line

from researchcopilot.core import cron

LINES = (
    line("30", "2"),
    line("0", "0"),
    line("0", "*"),
    line("0-59/15", "*"),
    line("0-59/15", "2"),
    line("15,45", "1-3"),
    line("0", "0-23/2"),
    line("30", "*", "0"),
    line("5", "0,1,23", "0,6"),
)
DRAWN = 3
MIDDLES = 5
SECOND = timedelta(seconds=1)


def disagreements(
    name: str, change: Change, lines: Sequence[Line], chance: random.Random
) -> list[str]:
    """What differs around one change; empty if all is well."""
    window = Window(name, change.day)
    found = []
    for wanted in lines:
        expected = window.ticks(wanted)
        rule = cron.parse(str(wanted), name)
        seen = list(_ticks(rule, window.start - SECOND, window.end))
        if seen != expected:
            odd = sorted(set(seen) ^ set(expected))[:4]
            found.append(f"{name} {change.day:%Y-%m-%d} {wanted!s}: {', '.join(map(str, odd))}")
        for _ in range(MIDDLES):
            moment = window.start + chance.random() * (window.end - window.start)
            later = [tick for tick in expected if tick > moment]
            if later and rule.after(moment) != later[0]:
                found.append(f"{name} {wanted!s} after {moment}: {rule.after(moment)}")
    return found


def _ticks(rule: cron.Cron, after: datetime, until: datetime) -> Iterator[datetime]:
    tick = rule.after(after)
    while tick is not None and tick <= until:
        yield tick
        tick = rule.after(tick)


def check_zone(name: str, seed: int, share: float = 1.0) -> tuple[int, list[str]]:
    """How many changes were looked at, and what differs."""
    chance = random.Random(f"{seed} {name}")
    chosen = [change for change in changes(name) if chance.random() < share]
    found: list[str] = []
    for change in chosen:
        lines = (*LINES, *(some_line(chance) for _ in range(DRAWN)))
        found += disagreements(name, change, lines, chance)
    return len(chosen), found


def distinct_zones() -> list[str]:
    """One name for each history."""
    histories: dict[tuple[Change, ...], str] = {}
    for name in sorted(cron.zones()):
        if history := tuple(changes(name)):
            histories.setdefault(history, name)
    return list(histories.values())


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos.zones", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the changes (default: all)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    started = time.monotonic()
    zones = distinct_zones()
    print(f"{len(zones)} zones with changes of their own", flush=True)
    total, found = 0, []
    with ProcessPoolExecutor(arguments.processes) as pool:
        seeds, shares = [arguments.seed] * len(zones), [arguments.share] * len(zones)
        for number, differences in pool.map(check_zone, zones, seeds, shares):
            total += number
            found += differences
            for words in differences:
                print(words, flush=True)
    lines = len(LINES) + DRAWN
    print(f"{total} changes, {lines} lines each, {time.monotonic() - started:.0f} s: "
          f"{len(found)} disagreements")  # fmt: skip
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
