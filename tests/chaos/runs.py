"""The act of runs: all parts at work, submitted to over HTTP, while every fault strikes.

Each accepted id is on disk before it counts; a trigger logs every change of status. At the end
every accepted run has to be terminal by exactly one move, with one answer for each success and a
whole ledger, and every list empty. The history of each run that is concerned is told.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import verdict, watch
from tests.chaos.driver import Course, Driver, Options
from tests.chaos.stage import Stage
from tests.chaos.tally import Accepted
from tests.chaos.watch import Finding

from researchcopilot.dev.signals import ENDING
from researchcopilot.storage.db import Database

SHOWN = 10


@dataclass(frozen=True, slots=True)
class Result:
    """What a test has to look at; `text` is what a person reads."""

    course: Course
    findings: Sequence[Finding]
    lines: Sequence[verdict.Line]
    text: str


def run(options: Options, say: Callable[[str], None], keep: Path | None = None) -> Result:
    """All of it; no process and no folder is left behind, but for the logs that are kept in
    `keep` if anything was broken."""
    with Stage(options.lease_s) as stage:
        stage.start_servers()
        with Accepted(stage.accepted_file) as accepted:
            course = asyncio.run(_driven(Driver(options, stage, accepted, say)))
            result = asyncio.run(_judged(stage, course))
        if result.findings and keep is not None:
            stage.keep_logs(keep)
        return result


async def _driven(driver: Driver) -> Course:
    """Ctrl-C and SIGTERM cancel it: raised in the middle of the loop they would leave tasks that
    nobody wakes."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    if threading.current_thread() is not threading.main_thread():
        return await driver.run()
    before = {
        number: signal.signal(number, lambda *_: loop.call_soon_threadsafe(task.cancel))
        for number in ENDING
    }
    try:
        return await driver.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _judged(stage: Stage, course: Course) -> Result:
    db = Database(stage.stack.settings.database)
    await db.open()
    try:
        findings = await verdict.judge(db, course, stage.complaints, stage.logs())
        lines = await verdict.lines(db, course, stage.logs())
        blocks = ["", *verdict.table(lines), "", *await verdict.totals(db, course), ""]
        blocks += await _longest(db, course)
        blocks += watch.summary(findings)
        run_ids = dict.fromkeys(f.run_id for f in findings if f.run_id is not None)
        for run_id in list(run_ids)[:SHOWN]:
            blocks += [
                "",
                f"run {run_id}",
                await watch.history(db, run_id),
                *_entry(course, run_id),
            ]
        lost = (
            f"{len(findings)} faults" if findings else "nothing lost, nothing twice, nothing stuck"
        )
        return Result(course, findings, lines, "\n".join([*blocks, "", lost]))
    finally:
        await db.close()


async def _longest(db: Database, course: Course) -> list[str]:
    """What took longest is worth a look also if nothing is wrong."""
    found = await verdict.longest(db, course)
    lines = [f"  {wait:.2f} s after {name}: run {run_id}" for wait, name, run_id in found]
    if found:
        lines += [await watch.history(db, found[0][2])]
    return ["the longest recoveries:", *lines, ""]


def _entry(course: Course, run_id: str) -> list[str]:
    places = [key for key, entries in course.left.items() for e in entries if run_id in e]
    return [f"  its entry: {', '.join(places) or 'in no list'}"]
