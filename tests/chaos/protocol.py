"""The moves under real concurrency: several processes on a few hot sessions, with tiny leases.

    python -m tests.chaos.protocol [--seed N] [--seconds S] [--processes N] [--sessions N]
                                   [--group N] [--lease S] [--database URL]

Without a database it starts a Postgres of its own. Every process submits, claims, resends,
finishes (also twice), retries, releases, renews, takes back, expires and cancels. Then nothing
new comes, and all must end within the limit. The rules are those of `watch.sql` and these: no
verdict and no push is lost, one key makes one set of runs, and Postgres has seen no deadlock.
"""

import argparse
import asyncio
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeVar

from tests.chaos import watch
from tests.chaos.actors import work
from tests.chaos.scene import Program, Report

from researchcopilot.core.settings import DatabaseSettings
from researchcopilot.core.states import TERMINAL
from researchcopilot.dev.folder import temporary_folder
from researchcopilot.dev.postgres import Postgres
from researchcopilot.dev.processes import Guard
from researchcopilot.storage.db import Database
from researchcopilot.storage.migrate import migrate

T = TypeVar("T")
_DEADLOCKS = b"SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
_LOG = b"""
    SELECT what, coalesce(source, ''), target, count(*)
    FROM watch_moves GROUP BY 1, 2, 3"""
_KEYS = b"SELECT key, run_ids::text[] FROM idempotency_keys"
_LEDGER = b"SELECT count(*) FROM claims"


def run(program: Program) -> tuple[Report, list[watch.Finding]]:
    """The whole test on a database that has the schema: what was seen, and what was broken."""
    asyncio.run(_with_database(program.database_url, watch.install))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(program.processes, mp_context=context) as pool:
        reports = list(pool.map(work, [program] * program.processes, range(program.processes)))
    report = Report()
    for other in reports:
        report.add(other)
    found = asyncio.run(_with_database(program.database_url, lambda db: _judge(db, report)))
    return report, found


async def _with_database(url: str, call: Callable[[Database], Awaitable[T]]) -> T:
    db = Database(DatabaseSettings(url=url))
    await db.open()
    try:
        return await call(db)
    finally:
        await db.close()


async def _judge(db: Database, report: Report) -> list[watch.Finding]:
    found = await watch.findings(db)
    found += [
        watch.Finding("a verdict that may not be", None, words) for words in report.complaints
    ]
    [(deadlocks,)] = await db.rows(_DEADLOCKS)
    if deadlocks:
        found.append(watch.Finding("Postgres sees no deadlock", None, f"{deadlocks} of them"))
    found += _compare(await _logged(db), _told(report.counts))
    unasked = {run_id for (run_id,) in await db.rows(b"SELECT run_id FROM runs")} ^ report.made
    if unasked:
        words = f"{len(unasked)} runs that no answer names, or that an answer names in vain"
        found.append(watch.Finding("an answer names what was made", min(unasked), words))
    made = {key: tuple(run_ids) for key, run_ids in await db.rows(_KEYS)}
    found += [
        watch.Finding("one key, one set of runs", None, f"{key}: {answers}, made {made.get(key)}")
        for key, answers in report.keys.items()
        if answers != {made.get(key)}
    ]
    return found


async def _logged(db: Database) -> dict[str, int]:
    """How often each move was made, by the log of the triggers."""
    logged: Counter[str] = Counter()
    for what, source, target, number in await db.rows(_LOG):
        logged[f"{source} -> {target}" if what == "status" else what] += number
    [(claims,)] = await db.rows(_LEDGER)
    return {**logged, "rows of the ledger": claims}


def _told(counts: Counter[str]) -> dict[str, int]:
    """How often each move was made, by the verdicts that its callers were given."""
    told = {
        f"running -> {status}": counts[f"finish: {status}"] + counts[f"taken back: {status}"]
        for status in (*TERMINAL, "queued")
    }
    claimed = counts["claim: claimed"]
    return {
        **told,
        "queued -> running": claimed,
        "rows of the ledger": claimed,
        "queued -> failed": counts["expired: failed"],
        "unparked": counts["freed"],
    }


def _compare(logged: dict[str, int], told: dict[str, int]) -> list[watch.Finding]:
    """No verdict is lost and none is made up: what was told is what was done."""
    return [
        watch.Finding("no verdict is lost", None, f"{move}: {logged.get(move, 0)}, told {number}")
        for move, number in told.items()
        if logged.get(move, 0) != number
    ]


# By hand


@contextmanager
def own_postgres() -> Iterator[str]:
    folder = temporary_folder()
    guard = Guard(folder)
    postgres = Postgres(folder, guard, options={"max_connections": "300"})
    try:
        postgres.start()
        asyncio.run(_with_database(postgres.url(), migrate))
        yield postgres.url()
    finally:
        postgres.stop()
        guard.close()


def parse(argv: list[str]) -> argparse.Namespace:
    default = Program("")
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.protocol", description=__doc__, formatter_class=layout
    )
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=default.processes)
    parser.add_argument("--sessions", type=int, default=default.sessions)
    parser.add_argument("--group", type=int, default=default.group)
    parser.add_argument("--lease", type=float, default=default.lease_s, dest="lease_s")
    parser.add_argument("--database", metavar="URL", help="one with the schema, for nothing else")
    return parser.parse_args(argv)


def rehearse(program: Program, database_url: str | None = None) -> tuple[Report, int, str]:
    """A whole test, without a URL on a Postgres of its own: what was seen, how many rules were
    broken, and all of it for a person to read."""
    with nullcontext(database_url) if database_url else own_postgres() as url:
        started = time.monotonic()
        report, found = run(replace(program, database_url=url))
        rows = [[name, f"{number:,}"] for name, number in sorted(report.counts.items())]
        lines = [
            f"{program.processes} processes on {program.sessions} sessions, groups of at most "
            f"{program.group}, leases of {program.lease_s * 1000:.0f} ms, seed {program.seed}: "
            f"{time.monotonic() - started:.0f} s",
            *(f"  {line}" for line in watch.columns(rows)),
            *watch.summary(found),
        ]
        for run_id in sorted({f.run_id for f in found if f.run_id is not None})[:5]:
            history = partial(watch.history, run_id=run_id)
            lines += ["", f"run {run_id}", asyncio.run(_with_database(url, history))]
    return report, len(found), "\n".join(lines)


def main(argv: list[str]) -> int:
    options = vars(parse(argv))
    url = options.pop("database")
    _, broken, text = rehearse(Program("", **options), url)
    print(text)
    print(f"{broken} broken rules" if broken else "every rule held")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
