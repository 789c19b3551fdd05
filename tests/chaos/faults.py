"""What is done to the stack: each fault with what it touches, and how it is made.

`acts` is called from a thread and returns when the fault is over: what was killed runs again,
what was stopped goes on. It calls `struck` at the moment when the blow has fallen; then the driver
notes which runs it touches: those of `touches`, a query of `TOUCHED`.
"""

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.stage import Stage

Struck = Callable[[], None]
# Runs that wait in a list or set of Redis, and those that somebody executes.
TOUCHED = {
    "in its hands": b"""
        SELECT run_id, claim_no FROM runs WHERE status = 'running' AND worker_id IN (
            SELECT worker_id FROM workers WHERE pid = %(pid)s ORDER BY started_at DESC LIMIT 1)""",
    "just accepted": b"""
        SELECT run_id, claim_no FROM runs WHERE status = 'queued' AND NOT parked AND claim_no = 0
        AND run_at <= clock_timestamp() AND created_at > clock_timestamp() - interval '1 second'""",
    "waiting": b"""
        SELECT run_id, claim_no FROM runs WHERE status = 'queued' AND NOT parked""",
    "delayed": b"""
        SELECT run_id, claim_no FROM runs WHERE status = 'queued' AND NOT parked
        AND run_at > clock_timestamp()""",
    "all": b"""
        SELECT run_id, claim_no FROM runs
        WHERE status = 'running' OR status = 'queued' AND NOT parked""",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """`targets`: kinds of parts (or servers) that it needs, one of each kind."""

    name: str
    targets: tuple[str, ...]
    touches: str
    acts: Callable[[Stage, tuple[str, ...], random.Random, Struck], None]


def _kill(stage: Stage, names: tuple[str, ...], rand: random.Random, struck: Struck) -> None:
    stage.kill(names[0])
    struck()
    time.sleep(rand.uniform(0, stage.lease_s / 2))
    stage.start(names[0])


def _stop_past_lease(
    stage: Stage, names: tuple[str, ...], rand: random.Random, struck: Struck
) -> None:
    """Sometimes past two leases: then its lists are cleared as those of a dead one."""
    stage.stack.parts[names[0]].child.send(signal.SIGSTOP)
    struck()
    stage.pause(names[0], stage.lease_s * rand.uniform(1.3, 3.5))


def _drain(stage: Stage, names: tuple[str, ...], rand: random.Random, struck: Struck) -> None:
    struck()
    stage.ask_to_stop(names[0])
    stage.start(names[0])


def _janitor_dies_at_work(
    stage: Stage, names: tuple[str, ...], rand: random.Random, struck: Struck
) -> None:
    """A worker is killed, and the janitor about when it would take its runs back."""
    janitor, worker = names
    stage.kill(worker)
    struck()
    time.sleep(stage.lease_s * rand.uniform(0.8, 1.4))
    stage.kill(janitor)
    stage.start(janitor)
    stage.start(worker)


def _janitor_stops_at_work(
    stage: Stage, names: tuple[str, ...], rand: random.Random, struck: Struck
) -> None:
    janitor, worker = names
    stage.kill(worker)
    struck()
    stage.pause(janitor, stage.lease_s * rand.uniform(1.2, 2.0))
    stage.start(worker)


def _flush(stage: Stage, names: tuple[str, ...], rand: random.Random, struck: Struck) -> None:
    struck()
    stage.flush()


def _redis_empty(stage: Stage, names: tuple[str, ...], rand: random.Random, struck: Struck) -> None:
    struck()
    stage.empty_redis()


def _redis_killed(
    stage: Stage, names: tuple[str, ...], rand: random.Random, struck: Struck
) -> None:
    """It comes back with its file, which may be a second old."""
    struck()
    stage.stack.valkey.kill()
    time.sleep(rand.uniform(0, 0.5))
    stage.stack.valkey.start()


def _pushes_lost(stage: Stage, names: tuple[str, ...], rand: random.Random, struck: Struck) -> None:
    """Redis answers nobody while runs are accepted, and both apis die before it does again: their
    pushes are lost, and Redis does not look as if anything had happened."""
    apis = names[1:]
    stage.stack.valkey.child.send(signal.SIGSTOP)
    try:
        time.sleep(0.8)
        for api in apis:
            stage.kill(api)
    finally:
        stage.stack.valkey.child.send(signal.SIGCONT)
    struck()
    for api in apis:
        stage.start(api)


def _postgres_restart(
    stage: Stage, names: tuple[str, ...], rand: random.Random, struck: Struck
) -> None:
    struck()
    stage.stack.postgres.restart()


def _postgres_killed(
    stage: Stage, names: tuple[str, ...], rand: random.Random, struck: Struck
) -> None:
    struck()
    stage.stack.postgres.kill()
    time.sleep(rand.uniform(0, 0.5))
    stage.stack.postgres.start()


WORKER_KILLED = Fault("worker kill -9", ("worker",), "in its hands", _kill)
PUSHES_LOST = Fault(
    "pushes lost: Redis hangs, apis die", ("Valkey", "api", "api"), "just accepted", _pushes_lost
)
FAULTS = (
    WORKER_KILLED,
    Fault("worker stopped past its lease", ("worker",), "in its hands", _stop_past_lease),
    Fault("worker asked to stop", ("worker",), "in its hands", _drain),
    Fault("api kill -9", ("api",), "just accepted", _kill),
    Fault("api stopped", ("api",), "just accepted", _stop_past_lease),
    Fault("janitor kill -9, and a worker", ("janitor", "worker"), "in its hands",
          _janitor_dies_at_work),
    Fault("janitor stopped, a worker killed", ("janitor", "worker"), "in its hands",
          _janitor_stops_at_work),
    Fault("scheduler kill -9", ("scheduler",), "delayed", _kill),
    Fault("scheduler stopped", ("scheduler",), "delayed", _stop_past_lease),
    Fault("Redis FLUSHALL", ("Valkey",), "waiting", _flush),
    Fault("Redis restarted empty", ("Valkey",), "waiting", _redis_empty),
    Fault("Redis kill -9, an older file", ("Valkey",), "waiting", _redis_killed),
    PUSHES_LOST,
    Fault("Postgres restarted", ("Postgres",), "all", _postgres_restart),
    Fault("Postgres kill -9", ("Postgres",), "all", _postgres_killed),
)  # fmt: skip
# After all others once more: a Redis that is wiped later would be written anew, and with it would
# go what a dead worker left in its list, and come what was never pushed.
LAST = (WORKER_KILLED, PUSHES_LOST)


def targets_of(fault: Fault, parts: list[str], rand: random.Random) -> tuple[str, ...]:
    """A part for each kind that the fault needs, by name; servers are their own kind."""
    chosen: list[str] = []
    for kind in fault.targets:
        fitting = [name for name in parts if _is_a(name, kind) and name not in chosen]
        chosen.append(rand.choice(fitting) if fitting else kind)
    return tuple(chosen)


def _is_a(name: str, kind: str) -> bool:
    return kind in (name, name.rpartition(" ")[0])
