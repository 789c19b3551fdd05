"""Judging a chaos test: what was lost, done twice or left behind, and the table of the faults."""

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.chaos import watch
from tests.chaos.driver import Blow, Course, Seen
from tests.chaos.fault import Fault
from tests.chaos.stage import LINES
from tests.chaos.watch import Finding

from researchcopilot.storage.db import Database

REFUSED = ("run stale", "another worker has this run now")
# After SIGCONT the loop has stood still; a thread cannot be stopped when its worker drains.
MEANT = (
    "one of the agents blocks the event loop",
    "the agent goes on although it was told to stop",
    "a plain function goes on in its thread",
)
# Asked to stop while its way to Postgres is blocked a worker hands nothing back; only then.
LEFT = "runs are left to their leases"
BLOCKED_S, HOUR_S = 25.0, 3600.0
_STATUSES = b"SELECT run_id, status, metadata ->> 'expect', error FROM runs"
_RESULTS = b"""
    SELECT run_id, claim_no, result FROM runs
    WHERE status = 'succeeded' AND agent IN ('chaos', 'chaos_sync')"""
_MOVES = b"""
    SELECT run_id, at FROM watch_moves
    WHERE what = 'parked' OR what = 'status' AND source IS NOT NULL AND target <> 'queued'
    ORDER BY move_id"""
_LOST = b"SELECT run_id, claim_no FROM claims WHERE outcome IN ('lost', 'release')"
_TOTALS = b"""
    SELECT (SELECT count(*) FROM claims) AS claims, (SELECT count(*) FROM watch_moves) AS moves,
           (SELECT count(*) FROM messages WHERE role = 'assistant') AS answers,
           (SELECT count(*) FROM sessions) AS sessions,
           (SELECT coalesce(sum(deadlocks), 0) FROM pg_stat_database) AS deadlocks"""


async def judge(
    db: Database, course: Course, complaints: Sequence[str], logs: Sequence[Path]
) -> list[Finding]:
    """Every rule that was broken; none is success."""
    found = await watch.findings(db)
    rows = {row[0]: row[1:] for row in await db.rows(_STATUSES)}
    found += [
        Finding("an accepted run is lost", run_id, "it was accepted, and there is no row of it")
        for run_id in course.tally.accepted.read()
        if run_id not in rows
    ]
    found += [
        Finding("a run ends as its agent says", run_id, f"{status} instead of {expect}: {error}")
        for run_id, (status, expect, error) in rows.items()
        if expect is not None and status != expect
    ]
    found += [_about_result(*row) for row in await db.rows(_RESULTS) if _is_odd(*row[1:])]
    found += [
        Finding("every list and set is empty", _run_of(entry), f"{entry} stands in {key}")
        for key, entries in course.left.items()
        for entry in entries
    ]
    if not course.resting:
        found.append(Finding("all comes to rest", None, "something was left when time was over"))
    found += without_effect(course.seen)
    seen = [*course.tally.complaints, *complaints]
    found += [Finding("seen from outside", None, words) for words in seen]
    return found + _told(logs, course.blows)


def without_effect(seen: Sequence[Seen]) -> list[Finding]:
    """Each fault has to be seen to have happened: else all that was survived was nothing."""
    return [
        Finding("every fault has an effect", None, f"{one.fault.name} on {one.where} had none")
        for one in seen
        if one.number == 0
    ]


def _told(logs: Sequence[Path], blows: Sequence[Blow]) -> list[Finding]:
    """What a part calls an error itself, but for what the faults of this test must lead to."""
    found = []
    for log in logs:
        for line in _lines(log):
            if line["level"] in ("error", "critical") and not is_meant(line, blows):
                last = str(line.get("trace", "")).rstrip().rpartition("\n")[2]
                words = f"{log.stem}: {line['message']} {last}"
                found.append(Finding("a part reports an error", line.get("run_id"), words))
    return found


def is_meant(line: dict[str, Any], blows: Sequence[Blow]) -> bool:
    if LEFT in line["message"]:
        at = datetime.fromisoformat(line["time"])
        return any(_blocks_postgres(blow.fault) and _soon_after(blow.at, at) for blow in blows)
    return bool(line["message"].startswith(MEANT))


def _blocks_postgres(fault: Fault) -> bool:
    """Its server, a line, or everything."""
    return not fault.targets or any(
        kind == "Postgres" or kind.startswith(LINES) for kind in fault.targets
    )


def _soon_after(at: datetime, told: datetime) -> bool:
    """By the clock of whoever told it: it may be an hour off, and jump by some seconds."""
    return ((told - at).total_seconds() + 3) % HOUR_S < BLOCKED_S


def _lines(log: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log that are whole: the last one of a process that was killed may not be."""
    for text in log.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            line = json.loads(text)
            if isinstance(line, dict) and "message" in line:
                yield line


def _is_odd(claim_no: int, result: dict[str, object]) -> bool:
    parts = result["parts"]
    assert isinstance(parts, list)
    return result["claim_no"] != claim_no or parts != sorted(parts) or parts[-1] > claim_no


def _about_result(run_id: str, claim_no: int, result: object) -> Finding:
    words = f"its last claim is {claim_no}, the result is of {result}"
    return Finding("the result is that of the last claim", run_id, words)


def _run_of(entry: str) -> str:
    return entry.partition(".")[2]


# The table


@dataclass(frozen=True, slots=True)
class Line:
    """What became of the runs that faults of one kind touched; `seen`: what they were seen to do,
    `waits`: see `_wait`."""

    name: str
    times: int
    seen: str
    touched: int
    waits: tuple[float, ...]
    refused: int
    again: int

    @property
    def cells(self) -> list[str]:
        p50, p99 = (_seconds(self.waits, share) for share in (0.5, 0.99))
        numbers = [f"{n:,}" for n in (self.times, self.touched)]
        ends = [p50, p99, f"{self.refused:,}", f"{self.again:,}"]
        return [self.name, *numbers, *ends, self.seen]


HEADER = ["fault", "times", "in flight", "recovered p50", "p99", "stale refused", "re-runs",
          "seen to happen"]  # fmt: skip


async def lines(db: Database, course: Course, logs: Iterable[Path]) -> list[Line]:
    """One for each kind of fault, and the total."""
    moves = await _moves(db)
    again = {(run_id, claim_no) for run_id, claim_no in await db.rows(_LOST)}
    refused = set(_refused(logs))
    by_name: dict[str, list[Blow]] = defaultdict(list)
    for blow in course.blows:
        by_name[blow.fault.name].append(blow)
    found = [
        _line(name, _seen(course, name), mine, moves, refused, again)
        for name, mine in sorted(by_name.items())
    ]
    total = _line("total", "", course.blows, moves, refused, again)
    return [*found, replace(total, refused=len(refused), again=len(again))]


def _seen(course: Course, name: str) -> str:
    mine = [one for one in course.seen if one.fault.name == name]
    return f"{sum(one.number for one in mine):,} {mine[0].fault.seen}" if mine else "-"


def _line(
    name: str,
    seen: str,
    blows: Sequence[Blow],
    moves: dict[str, list[datetime]],
    refused: set[tuple[str, int]],
    again: set[tuple[str, int]],
) -> Line:
    touched = {pair for blow in blows for pair in blow.touched}
    waits = [
        wait
        for blow in blows
        for run_id, _ in blow.touched
        if (wait := _wait(blow.at, moves[run_id])) is not None
    ]
    refusals, reruns = len(touched & refused), len(touched & again)
    return Line(name, len(blows), seen, len(touched), tuple(waits), refusals, reruns)


async def longest(db: Database, course: Course, shown: int = 5) -> list[tuple[float, str, str]]:
    """(seconds, fault, run) of the recoveries that took longest, one for each run."""
    moves = await _moves(db)
    waits = sorted(
        (wait, blow.fault.name, run_id)
        for blow in course.blows
        for run_id, _ in blow.touched
        if (wait := _wait(blow.at, moves[run_id])) is not None
    )
    by_run = {run_id: (wait, name, run_id) for wait, name, run_id in waits}
    return sorted(by_run.values(), reverse=True)[:shown]


async def _moves(db: Database) -> dict[str, list[datetime]]:
    moves: dict[str, list[datetime]] = defaultdict(list)
    for run_id, at in await db.rows(_MOVES):
        moves[run_id].append(at)
    return moves


def _wait(at: datetime, moves: Sequence[datetime]) -> float | None:
    """Seconds from the blow until the run was running again or had ended; or until a claim parked
    it: then its queue had brought it to a worker again, and what it waits for is its session."""
    return next(((moved - at).total_seconds() for moved in moves if moved >= at), None)


def _refused(logs: Iterable[Path]) -> Iterable[tuple[str, int]]:
    """(run, claim) of each result that came too late, as the workers tell in their logs."""
    for log in logs:
        for line in _lines(log):
            if line["message"].startswith(REFUSED):
                yield line["run_id"], line["claim_no"]


def _seconds(values: Sequence[float], share: float) -> str:
    if not values:
        return "-"
    ordered = sorted(values)
    return f"{ordered[min(len(ordered) - 1, int(share * len(ordered)))]:.2f} s"


def table(found: Sequence[Line]) -> list[str]:
    rows = [HEADER, *(line.cells for line in found)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(HEADER))]
    shown = [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(c.rjust(w) for c, w in zip(row[1:-1], widths[1:-1], strict=True)),
                row[-1].ljust(widths[-1]),
            ]
        )
        for row in rows
    ]
    rule = "-" * len(shown[0])
    return [shown[0], rule, *shown[1:-1], rule, shown[-1]]


async def totals(db: Database, course: Course) -> list[str]:
    """The numbers under the table."""
    by_status = Counter(str(row[1]) for row in await db.rows(_STATUSES))
    [row] = await db.dicts(_TOTALS)
    numbers = {
        "accepted, on disk": course.tally.accepted.count,
        **{f"runs {status}": number for status, number in sorted(by_status.items())},
        **row,
        "sessions with parked runs and no turn": course.forgotten,
        **course.tally.counts,
    }
    return watch.columns([[name, f"{number:,}"] for name, number in numbers.items()])
