"""`python -m tests.chaos.ticks [--seconds S] [--schedules N] [--seed N]`: each tick exactly once.

Three scheduler processes whose clocks are wrong by half a minute each way fire schedules of one
second, while they are killed and stopped at random; then the same while their lock is deleted and
stolen, and next ticks are set back by hand; then while Redis is flushed. Every schedule catches up
with everything (misfire all), so nothing may be missing, and nothing may be there twice or early.
"""

import argparse
import contextlib
import os
import random
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import redis

from researchcopilot.dev.folder import temporary_folder
from researchcopilot.dev.parts import Part
from researchcopilot.dev.postgres import Postgres
from researchcopilot.dev.processes import Guard, until
from researchcopilot.dev.valkey import Valkey

ROOT = Path(__file__).parents[2]
OFFSETS = (-30.0, 0.0, 30.0)
KILLED = ("kill", "stop")
UNLOCKED = (*KILLED, "unlock", "steal", "set_back")
FLUSHED = (*UNLOCKED, "flush")


@dataclass(frozen=True, slots=True)
class Program:
    """One test. `environ`: RC_ variables of the servers; files go into `folder`."""

    environ: Mapping[str, str]
    folder: Path
    guard: Guard
    seconds: float = 8.0
    schedules: int = 5
    faults: tuple[str, ...] = FLUSHED
    pause_s: float = 0.5  # between two faults, at most
    seed: int = 1


@dataclass
class Report:
    """What was seen. `by_clock`: ticks fired by the process whose clock is wrong by so much."""

    ticks: int = 0
    runs: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    by_clock: dict[float, int] = field(default_factory=dict)
    late_ms: tuple[float, float, float] = (0.0, 0.0, 0.0)  # p50, p99, most
    findings: list[str] = field(default_factory=list)


def run(program: Program) -> Report:
    """Start, disturb, let them catch up, and judge."""
    environ = {**os.environ, **program.environ}
    environ["PYTHONPATH"] = os.pathsep.join((str(ROOT), environ.get("PYTHONPATH", "")))
    parts = [_skewed(program, number, environ) for number in range(len(OFFSETS))]
    connection: psycopg.Connection[tuple[Any, ...]] = psycopg.connect(
        program.environ["RC_DATABASE_URL"], autocommit=True
    )
    client = redis.Redis.from_url(program.environ["RC_REDIS_URL"])
    with connection, client:
        _make_schedules(connection, program.schedules)
        try:
            for part in parts:
                part.launch()
            report = Report(faults=_disturb(program, parts, connection, client))
            if not until(lambda: _caught_up(connection), 20.0, 0.05):
                report.findings.append("they did not catch up within 20 s")
        finally:
            for part in parts:
                part.kill()
        _judge(connection, report)
    return report


def _skewed(program: Program, number: int, environ: Mapping[str, str]) -> Part:
    part = Part(f"scheduler {number + 1}", ["scheduler"], environ, folder=program.folder,
                guard=program.guard)  # fmt: skip
    part.child.command[1:] = ["-m", "tests.chaos.skewed", str(OFFSETS[number]), "scheduler"]
    return part


def _make_schedules(connection: psycopg.Connection[tuple[Any, ...]], number: int) -> None:
    """Rows as the api makes them; the first ticks come in two seconds, those of each schedule at
    another part of the second."""
    connection.execute(_WATCH)
    connection.execute(
        "INSERT INTO schedules (schedule_id, workspace_id, name, system, session_id, agent, input,"
        " interval_s, anchor, starts_at, misfire, overlap, next_tick, created_at, updated_at)"
        " SELECT gen_random_uuid(), 1, 'ticks ' || n, false, gen_random_uuid(), 'echo', '1',"
        " 1, start, start, 'all', 'allow', start, now(), now() FROM (SELECT n, date_trunc("
        " 'second', now()) + interval '2 seconds' + make_interval(secs => n / %s::float8) AS start"
        " FROM generate_series(1, %s) n) s",
        [number, number],
    )


def _caught_up(connection: psycopg.Connection[tuple[Any, ...]]) -> bool:
    row = connection.execute(
        "SELECT min(next_tick) > clock_timestamp() - interval '0.2 seconds' FROM schedules"
    ).fetchone()
    return row is not None and bool(row[0])


# Faults


def _disturb(
    program: Program,
    parts: list[Part],
    connection: psycopg.Connection[tuple[Any, ...]],
    client: "redis.Redis",
) -> dict[str, int]:
    chance = random.Random(program.seed)
    stopped: dict[int, float] = {}  # which part → when it goes on
    counts = dict.fromkeys(program.faults, 0)
    ways: dict[str, Callable[[], object]] = {
        "kill": lambda: _kill(chance.choice(parts), stopped, parts),
        "stop": lambda: _stop(
            chance.randrange(len(parts)), chance.uniform(0.3, 2.5), parts, stopped
        ),
        "unlock": lambda: client.delete("lock:scheduler"),
        "steal": lambda: client.set("lock:scheduler", "a thief", px=int(chance.uniform(100, 2000))),
        "set_back": lambda: connection.execute(
            "UPDATE schedules SET next_tick = next_tick - make_interval(secs => %s)"
            " WHERE NOT system AND next_tick - make_interval(secs => %s) >= anchor",
            [seconds := chance.randint(1, 4), seconds],
        ),
        "flush": client.flushall,
    }  # fmt: skip
    end = time.monotonic() + program.seconds
    while time.monotonic() < end:
        time.sleep(chance.uniform(0.05, program.pause_s))
        for number in [n for n, until_then in stopped.items() if until_then < time.monotonic()]:
            _go_on(number, parts, stopped)
        fault = chance.choice(program.faults)
        ways[fault]()
        counts[fault] += 1
        for part in parts:
            if not part.alive:
                part.launch()
    for number in list(stopped):
        _go_on(number, parts, stopped)
    return counts


def _kill(part: Part, stopped: dict[int, float], parts: list[Part]) -> None:
    stopped.pop(parts.index(part), None)
    part.kill()


def _stop(number: int, seconds: float, parts: list[Part], stopped: dict[int, float]) -> None:
    parts[number].child.send(signal.SIGSTOP)
    stopped[number] = time.monotonic() + seconds


def _go_on(number: int, parts: list[Part], stopped: dict[int, float]) -> None:
    stopped.pop(number)
    parts[number].child.send(signal.SIGCONT)


# Judgement

# What the rows say of their own time is not believed: a trigger notes when each of them came.
_WATCH = """
    CREATE TABLE seen (schedule_id uuid, tick timestamptz, run_id uuid,
                       at timestamptz NOT NULL DEFAULT clock_timestamp());
    CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF TG_TABLE_NAME = 'ticks' THEN
            INSERT INTO seen (schedule_id, tick) VALUES (NEW.schedule_id, NEW.tick);
        ELSE
            INSERT INTO seen (schedule_id, tick, run_id)
            VALUES (NEW.schedule_id, (NEW.metadata ->> 'tick')::timestamptz, NEW.run_id);
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER see_tick AFTER INSERT ON ticks FOR EACH ROW EXECUTE FUNCTION see();
    CREATE TRIGGER see_run AFTER INSERT ON runs FOR EACH ROW EXECUTE FUNCTION see()"""
_RULES = {
    "a tick that is not there": """
        SELECT s.name, g.tick FROM schedules s
        CROSS JOIN LATERAL generate_series(s.anchor, (SELECT max(t.tick) FROM ticks t
            WHERE t.schedule_id = s.schedule_id), interval '1 second') AS g(tick)
        WHERE NOT s.system AND NOT EXISTS (SELECT 1 FROM ticks t
            WHERE t.schedule_id = s.schedule_id AND t.tick = g.tick)""",
    "a tick of no rule": """
        SELECT s.name, t.tick FROM ticks t JOIN schedules s USING (schedule_id)
        WHERE extract(epoch FROM t.tick - s.anchor) % s.interval_s::numeric <> 0
           OR t.tick < s.anchor""",
    "a tick that was skipped": """
        SELECT s.name, t.tick FROM ticks t JOIN schedules s USING (schedule_id)
        WHERE t.outcome <> 'fired'""",
    "a tick without its run": """
        SELECT s.name, t.tick FROM ticks t JOIN schedules s USING (schedule_id)
        WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.run_id = t.run_id
            AND r.schedule_id = t.schedule_id AND (r.metadata ->> 'tick')::timestamptz = t.tick)""",
    "a run without its tick": """
        SELECT r.schedule_id::text, r.metadata ->> 'tick' FROM runs r
        WHERE NOT EXISTS (SELECT 1 FROM ticks t WHERE t.run_id = r.run_id)""",
    "a tick, or its run, that came twice": """
        SELECT schedule_id::text, tick FROM seen
        GROUP BY schedule_id, tick, run_id IS NULL HAVING count(*) > 1""",
    "a tick, or its run, that came before its time": """
        SELECT schedule_id::text, tick FROM seen WHERE at < tick""",
    "a schedule that was paused": """
        SELECT name, paused_why FROM schedules WHERE paused_at IS NOT NULL""",
}
_LATE = """
    SELECT percentile_cont(ARRAY[0.5, 0.99, 1]) WITHIN GROUP
        (ORDER BY extract(epoch FROM at - tick) * 1000)::float8[] FROM seen WHERE run_id IS NULL"""


def _judge(connection: psycopg.Connection[tuple[Any, ...]], report: Report) -> None:
    for rule, query in _RULES.items():
        rows = connection.execute(query).fetchall()
        report.findings += [f"{rule}: {row[0]} {row[1]}" for row in rows[:3]]
        if len(rows) > 3:
            report.findings.append(f"{rule}: {len(rows)} in all")
    counts = connection.execute(
        "SELECT (SELECT count(*) FROM ticks), (SELECT count(*) FROM runs)"
    ).fetchone()
    late = connection.execute(_LATE).fetchone()
    assert counts is not None and late is not None
    report.ticks, report.runs = counts
    report.late_ms = tuple(late[0]) if late[0] else report.late_ms
    report.by_clock = _by_clock(connection)


def _by_clock(connection: psycopg.Connection[tuple[Any, ...]]) -> dict[float, int]:
    """An id holds the time of the process that made it: so it tells whose clock was how wrong."""
    found = dict.fromkeys(OFFSETS, 0)
    query = "SELECT run_id, extract(epoch FROM created_at)::float8 FROM runs"
    for run_id, created_at in connection.execute(query):
        wrong = (uuid.UUID(str(run_id)).int >> 80) / 1000 - created_at
        found[min(OFFSETS, key=lambda offset: abs(offset - wrong))] += 1
    return found


# By hand


@contextlib.contextmanager
def own_servers() -> Iterator[tuple[dict[str, str], Path, Guard]]:
    folder = temporary_folder()
    guard = Guard(folder)
    postgres, valkey = Postgres(folder, guard), Valkey(folder, guard, appendonly=False)
    try:
        postgres.start()
        valkey.start()
        yield {"RC_DATABASE_URL": postgres.url(), "RC_REDIS_URL": valkey.url}, folder, guard
    finally:
        valkey.stop()
        postgres.stop()
        guard.close()


# What each round does to them, and its pauses: a process that is never up would fire nothing.
ROUNDS = (
    ("killed and stopped", KILLED, 2.0),
    ("the lock taken away", UNLOCKED, 0.8),
    ("Redis flushed", FLUSHED, 0.8),
)


def rehearse(seconds: float, schedules: int = 5, seed: int = 1) -> Iterator[tuple[str, Report]]:
    """All rounds, each on servers of its own."""
    for name, faults, pause_s in ROUNDS:
        with own_servers() as (environ, folder, guard):
            _migrate(environ, folder, guard)
            program = Program(environ, folder, guard, seconds=seconds, schedules=schedules,
                              faults=faults, pause_s=pause_s, seed=seed)  # fmt: skip
            yield name, run(program)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.ticks", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="of each of the three")
    parser.add_argument("--schedules", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    broken = 0
    for name, report in rehearse(**vars(parser.parse_args())):
        broken += len(report.findings)
        print(told(name, report), flush=True)
    print(f"{broken} broken rules" if broken else "every tick exactly once")
    return 1 if broken else 0


def _migrate(environ: Mapping[str, str], folder: Path, guard: Guard) -> None:
    part = Part("migrate", ["migrate"], {**os.environ, **environ}, folder=folder, guard=guard)
    part.launch()
    if part.child.wait(60) != 0:
        raise RuntimeError(part.last_words())


def told(name: str, report: Report) -> str:
    clocks = ", ".join(f"{offset:+.0f} s: {n}" for offset, n in report.by_clock.items())
    faults = ", ".join(f"{fault} {n}" for fault, n in report.faults.items())
    p50, p99, most = report.late_ms
    lines = [
        f"{name}: {report.ticks} ticks, {report.runs} runs; fired by the clock that is wrong by "
        f"{clocks}",
        f"  faults: {faults}",
        f"  late: p50 {p50:.0f} ms, p99 {p99:.0f} ms, at most {most:.0f} ms",
        *(f"  BROKEN: {finding}" for finding in report.findings),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
