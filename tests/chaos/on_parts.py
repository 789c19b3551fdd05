"""Faults of our own processes: killed, stopped, asked to stop, doubled, with a wrong clock."""

import json
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tests.chaos.fault import Fault, Strike
from tests.chaos.stage import SERVERS

from researchcopilot.dev.parts import HOST, Part

HOUR_S = 3600.0
SUCCESS = "researchcopilot_duty_last_success_timestamp_seconds"
DUE_MOVED = "researchcopilot_due_moved_total"


def _kill(strike: Strike) -> int:
    killed = strike.stage.kill(strike.name)
    strike.struck()
    time.sleep(strike.leases(0, 0.5))
    strike.stage.start(strike.name)
    return killed


def _stop_past_lease(strike: Strike) -> int:
    """Sometimes past two leases: then its lists are cleared as those of a dead one."""
    strike.stage.stop_going(strike.name)
    strike.struck()
    return strike.stage.pause(strike.name, strike.leases(1.3, 3.5))


def _drain(strike: Strike) -> int:
    strike.struck()
    ended = strike.stage.ask_to_stop(strike.name)
    strike.stage.start(strike.name)
    return ended


def _janitor_dies_at_work(strike: Strike) -> int:
    """A worker is killed, and the janitor about when it would take its runs back."""
    janitor, worker = strike.names
    killed = strike.stage.kill(worker)
    strike.struck()
    time.sleep(strike.leases(0.8, 1.4))
    killed += strike.stage.kill(janitor)
    strike.stage.start(janitor)
    strike.stage.start(worker)
    return killed


def _janitor_stops_at_work(strike: Strike) -> int:
    janitor, worker = strike.names
    killed = strike.stage.kill(worker)
    strike.struck()
    stopped = strike.stage.pause(janitor, strike.leases(1.2, 2.0))
    strike.stage.start(worker)
    return killed + stopped


def _rolling(strike: Strike) -> int:
    """As a roll-out does it: one after the other, each ready again before the next; then both
    servers. Whoever else works on a part is waited for."""
    strike.struck()
    restarted = 0
    for name in strike.rand.sample(list(strike.stage.stack.parts), len(strike.stage.stack.parts)):
        if strike.stage.over.is_set():
            return 0
        with strike.stage.patiently_holding(name):
            restarted += strike.stage.ask_to_stop(name)
            strike.stage.start(name)
    for name in SERVERS:
        with strike.stage.patiently_holding(name):
            restarted += strike.stage.restart(name)
    return restarted


# Two of what there is one of


def _two_janitors(strike: Strike) -> int:
    """Both take back what a killed worker held, and both must have had a good round meanwhile."""
    janitor, spare, worker = strike.names
    strike.stage.start(spare)
    since = time.time()
    killed = strike.stage.kill(worker)
    strike.struck()
    time.sleep(strike.leases(1.0, 1.5))
    both = strike.until(
        lambda: all(_last_sweep(strike.stage.part(name)) > since for name in (janitor, spare)), 20.0
    )
    strike.stage.start(worker)
    ended = strike.stage.ask_to_stop(spare)
    return killed + ended if both else 0


def _two_schedulers(strike: Strike) -> int:
    """Both move what is due; each must have moved something."""
    pair = [strike.stage.part(name) for name in strike.names]
    strike.stage.start(strike.names[1])
    before = [_moved(part) for part in pair]
    strike.struck()
    limit = time.monotonic() + 20.0
    moved = [
        strike.grown(lambda part=part: _moved(part), was, limit - time.monotonic())  # type: ignore[misc]
        for part, was in zip(pair, before, strict=True)
    ]
    strike.stage.ask_to_stop(strike.names[1])
    return sum(moved) if all(moved) else 0


def _last_sweep(part: Part) -> float:
    return _metric(part, SUCCESS, duty="leases")


def _moved(part: Part) -> int:
    return int(_metric(part, DUE_MOVED, queue="runs"))


def _metric(part: Part, name: str, **labels: str) -> float:
    """0 for what is not there yet, and while it does not answer."""
    port = part.ports.get("health")
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return 0.0
    samples = (s for family in text_string_to_metric_families(text) for s in family.samples)
    return next((s.value for s in samples if s.name == name and s.labels == labels), 0.0)


# Clocks


def _wrong_clock(strike: Strike) -> int:
    """An hour off, either way, and it jumps; its own log has to say so."""
    wrong = strike.rand.choice((HOUR_S, -HOUR_S))
    log = strike.stage.part(strike.name).child.log
    strike.stage.kill(strike.name)
    begun = log.stat().st_size
    strike.stage.start(strike.name, clock_s=wrong)
    strike.struck()
    time.sleep(strike.leases(1.0, 2.5))
    told = _clock_told(log, begun)
    if strike.rand.random() < 0.5:
        strike.stage.ask_to_stop(strike.name)
    else:
        strike.stage.kill(strike.name)
    strike.stage.start(strike.name)
    return int(told is not None and abs(told - time.time() - wrong) < HOUR_S / 4)


def _clock_told(log: Path, begun: int) -> float | None:
    for line in log.read_bytes()[begun:].splitlines():
        if line.startswith(b'{"time"'):
            text = json.loads(line)["time"]
            told = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
            return told.timestamp()
    return None


def _clock(part: str, touches: str) -> Fault:
    return Fault(f"{part}'s clock an hour off", (part,), touches, "clocks wrong", _wrong_clock)


WORKER_KILLED = Fault("worker kill -9", ("worker",), "in its hands", "killed", _kill)
KILLED = (
    WORKER_KILLED,
    Fault("worker stopped past its lease", ("worker",), "in its hands", "stopped",
          _stop_past_lease),
    Fault("worker asked to stop", ("worker",), "in its hands", "ended by itself", _drain),
    Fault("api kill -9", ("api",), "just accepted", "killed", _kill),
    Fault("api stopped", ("api",), "just accepted", "stopped", _stop_past_lease),
    Fault("api asked to stop", ("api",), "just accepted", "ended by itself", _drain),
    Fault("janitor kill -9, and a worker", ("janitor", "worker"), "in its hands", "killed",
          _janitor_dies_at_work),
    Fault("janitor stopped, a worker killed", ("janitor", "worker"), "in its hands",
          "killed, stopped", _janitor_stops_at_work),
    Fault("scheduler kill -9", ("scheduler",), "delayed", "killed", _kill),
    Fault("scheduler stopped", ("scheduler",), "delayed", "stopped", _stop_past_lease),
)  # fmt: skip
TWO_JANITORS = Fault("two janitors, a worker killed", ("janitor", "janitor 2", "worker"),
                     "in its hands", "killed, ended", _two_janitors)  # fmt: skip
TWO_SCHEDULERS = Fault(
    "two schedulers", ("scheduler", "scheduler 2"), "delayed", "entries moved", _two_schedulers
)
WORKERS_CLOCK = _clock("worker", "in its hands")
CLOCKS = (
    WORKERS_CLOCK,
    _clock("api", "just accepted"),
    _clock("janitor", "waiting"),
    _clock("scheduler", "delayed"),
)
ROLLING = Fault("rolling restart of everything", (), "all", "restarted", _rolling)
FAULTS = (*KILLED, TWO_JANITORS, TWO_SCHEDULERS, *CLOCKS, ROLLING)
