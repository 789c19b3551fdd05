"""For each gauge that a part exposes, what it has to be: by Postgres, Redis, the kernel, or what
the test itself has done, never by the code that tells it. A gauge without a line fails the test.
"""

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import redis

from researchcopilot import __version__
from researchcopilot.dev.parts import Part
from researchcopilot.storage.sql import named

Labels = frozenset[tuple[str, str]]
# From the lowest to the highest value that is true.
Range = tuple[float, float]
Found = Mapping[Labels, Range]
QUEUES = ("runs", "system")
SLOTS = {"runs": 2, "system": 1}
CONNECTIONS = 5
SERIOUS_S = 2.0  # ages: the exporter looks each 0.1 s, and the machine may be busy
SWEPT = ["redis", "leases", "entries", "deadlines", "probes", "no_agent", "depths", "totals"]
RARE = ["delayed", "parked", "retention", "expire_memories", "workers"]
SQL = named(Path(__file__).with_name("truths.sql").read_text())


@dataclass
class World:
    """What the test knows: its servers, its processes, and what it did to them."""

    rows: psycopg.Connection[Any]
    redis: redis.Redis
    parts: list[Part] = field(default_factory=list)
    began: float = field(default_factory=time.time)
    watching: tuple[int, int] = (0, 0)  # requests that wait for a run's end, for how many runs

    def by(self, query: str, *labels: str, part: Part | None = None) -> dict[Labels, float]:
        """Rows of labels and, last, a number; of this worker, if one is given."""
        found = self.rows.execute(SQL[query], {"pid": part.pid if part else 0}).fetchall()
        return {
            series(**dict(zip(labels, map(str, row), strict=False))): float(row[-1])
            for row in found
        }

    def by_queue(self, query: str) -> dict[Labels, float]:
        """The same for queues; one that has nothing stands at 0."""
        return {
            **{series(queue=queue): 0.0 for queue in QUEUES},
            **self.by(query, "queue"),
        }


def series(**labels: str) -> Labels:
    return frozenset(labels.items())


def exact(values: Mapping[Labels, float]) -> Found:
    return {labels: (float(value), float(value)) for labels, value in values.items()}


def near(values: Mapping[Labels, float], by: float) -> Found:
    return {labels: (value - by, value + by) for labels, value in values.items()}


def one(value: float, by: float = 0.0) -> Found:
    return near({series(): value}, by)


def name_of(part: Part) -> str:
    return part.name.split()[0]


# Queues


def processing(world: World, part: Part) -> Found:
    lists = {
        queue: sum(
            int(str(world.redis.llen(key)))
            for key in world.redis.scan_iter(f"queue:{queue}:processing:*")
        )
        for queue in QUEUES
    }
    return exact({series(queue=queue): number for queue, number in lists.items()})


def live(world: World, each: Mapping[str, int]) -> Found:
    workers = sum(name_of(part) == "worker" for part in world.parts)
    return exact({series(queue=queue): workers * each[queue] for queue in QUEUES})


def slots(world: World, part: Part) -> Found:
    busy = world.by("busy", "queue", part=part)
    found = {}
    for queue, total in SLOTS.items():
        held = busy.get(series(queue=queue), 0.0)
        found[series(queue=queue, state="busy")] = held
        found[series(queue=queue, state="idle")] = total - held
    return exact(found)


# The rest


def memory_limit(world: World, part: Part) -> Found:
    found: Any = world.redis.config_get("maxmemory")
    return one(float(found["maxmemory"]))


def used_memory(world: World, part: Part) -> Found:
    found: Any = world.redis.info("memory")
    return one(found["used_memory"], found["used_memory"] * 0.2)


def duties(world: World, part: Part) -> Found:
    now = time.time()
    names = {"janitor": SWEPT, "scheduler": [], "worker": []}[name_of(part)]
    rare = {"janitor": RARE, "scheduler": ["system_schedules"], "worker": ["aggregate_stats"]}
    return {
        **{series(duty=duty): (now - SERIOUS_S, now) for duty in names},
        **{series(duty=duty): (world.began, now) for duty in rare[name_of(part)]},
    }


def build(world: World, part: Part) -> Found:
    about = {"part": name_of(part), "version": __version__, "python": platform.python_version()}
    return exact({series(**about): 1})


def python(world: World, part: Part) -> Found:
    major, minor, patch = platform.python_version_tuple()
    about = {
        "implementation": platform.python_implementation(),
        "major": major,
        "minor": minor,
        "patchlevel": patch,
        "version": platform.python_version(),
    }
    return exact({series(**about): 1})


def sockets_of(pid: int) -> set[str]:
    """Inodes of its sockets, as /proc/net/tcp has them."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        if descriptor.is_symlink() and (target := os.readlink(descriptor)).startswith("socket:"):
            found.add(target[8:-1])
    return found


def database_connections(world: World, part: Part) -> int:
    """Connections of this process that Postgres knows, but for the one of a worker's renewals."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    mine = sockets_of(part.pid)
    ports = [int(line[1].rpartition(":")[2], 16) for line in lines if line[9] in mine]
    [[number]] = world.rows.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND client_port = ANY (%s)",
        [ports],
    )
    return int(number) - (name_of(part) == "worker")


def status(part: Part, word: str) -> float:
    """A size in /proc/<pid>/status, in bytes."""
    for line in Path(f"/proc/{part.pid}/status").read_text().splitlines():
        if line.startswith(word + ":"):
            return float(line.split()[1]) * 1024
    raise AssertionError(word)


def started(world: World, part: Part) -> Found:
    ticks = float(Path(f"/proc/{part.pid}/stat").read_text().rpartition(")")[2].split()[19])
    lines = Path("/proc/stat").read_text().splitlines()
    booted = next(float(line.split()[1]) for line in lines if line.startswith("btime"))
    return one(booted + ticks / os.sysconf("SC_CLK_TCK"), 1.0)


def descriptors(world: World, part: Part) -> Found:
    return one(len(list(Path(f"/proc/{part.pid}/fd").iterdir())), 5)


def most_descriptors(world: World, part: Part) -> Found:
    lines = Path(f"/proc/{part.pid}/limits").read_text().splitlines()
    return one(next(float(line.split()[3]) for line in lines if line.startswith("Max open files")))


def memory(word: str) -> Callable[[World, Part], Found]:
    return lambda world, part: one(status(part, word), status(part, word) * 0.2)


EVERY = "api worker scheduler janitor operator"
JANITOR = "janitor"


# Gauge → the parts that expose it, and its truth. Those of queues and totals are the janitor's
# alone, since a sum over processes would count them twice.
def watched(world: World, part: Part) -> Found:
    """Each watch is asked to end after a minute, so none is older."""
    return {series(kind=kind): (0.0, 60.0) for kind in ("pods", "researchruns", "runschedules")}


TRUTHS: dict[str, tuple[str, Callable[[World, Part], Found]]] = {
    "queue_waiting": (JANITOR, lambda w, p: exact(w.by_queue("waiting"))),
    "queue_processing": (JANITOR, processing),
    "queue_delayed": (JANITOR, lambda w, p: exact(w.by_queue("delayed"))),
    "queue_running": (JANITOR, lambda w, p: exact(w.by_queue("running"))),
    "queue_load": (JANITOR, lambda w, p: exact(w.by_queue("load"))),
    "queue_oldest_waiting_seconds": (JANITOR, lambda w, p: near(w.by_queue("oldest"), SERIOUS_S)),
    "queue_next_due_seconds": (JANITOR, lambda w, p: near(w.by("next_due", "queue"), SERIOUS_S)),
    "queue_workers": (JANITOR, lambda w, p: live(w, dict.fromkeys(QUEUES, 1))),
    "queue_slots": (JANITOR, lambda w, p: live(w, SLOTS)),
    "dead_letters": (JANITOR, lambda w, p: exact(w.by("dead_letters"))),
    "index_version": (JANITOR, lambda w, p: exact(w.by("index_version", "workspace"))),
    "index_age_seconds": (JANITOR, lambda w, p: near(w.by("index_age", "workspace"), SERIOUS_S)),
    "redis_memory_bytes": (JANITOR, used_memory),
    "redis_memory_limit_bytes": (JANITOR, memory_limit),
    "reclaimed_waiting": ("janitor operator", lambda w, p: one(0)),
    "runs_without_agent": (JANITOR, lambda w, p: exact(w.by("without_agent", "agent"))),
    "duty_last_success_timestamp_seconds": ("janitor scheduler worker", duties),
    "worker_slots": ("worker", slots),
    "lost_threads": ("worker", lambda w, p: exact(w.by("lost_threads", part=p))),
    "next_tick_seconds": ("scheduler", lambda w, p: near(w.by("next_tick"), SERIOUS_S)),
    "operator_objects": ("operator", lambda w, p: exact(w.by("objects", "kind"))),
    "operator_watch_age_seconds": ("operator", watched),
    "api_waiting_requests": ("api", lambda w, p: one(w.watching[0])),
    "api_watched_runs": ("api", lambda w, p: one(w.watching[1])),
    "build_info": (EVERY, build),
    "database_connections_limit": (EVERY, lambda w, p: one(CONNECTIONS)),
    "database_waiting_requests": (EVERY, lambda w, p: one(0)),
    # Busy and idle change in each moment; their sum is what Postgres sees of this process.
    "database_connections": (EVERY, lambda w, p: one(database_connections(w, p))),
    "process_virtual_memory_bytes": (EVERY, memory("VmSize")),
    "process_resident_memory_bytes": (EVERY, memory("VmRSS")),
    "process_start_time_seconds": (EVERY, started),
    "process_open_fds": (EVERY, descriptors),
    "process_max_fds": (EVERY, most_descriptors),
    "python_info": (EVERY, python),
}
# (part, counter or histogram, suffix, labels, the query that vouches for it)
COUNTERS = [
    ("api", "runs_submitted", "_total", "queue", "submitted"),
    ("worker", "runs_finished", "_total", "queue agent outcome", "finished"),
    ("worker", "retries", "_total", "agent reason", "retries"),
    ("worker", "run_attempts", "_count", "agent", "ended"),
    ("worker", "run_attempts", "_sum", "agent", "attempts"),
    ("worker", "run_seconds", "_count", "queue agent", "executed"),
    ("worker", "reclaimed_wait_seconds", "_count", "queue", "recovered"),
    ("janitor", "reclaims", "_total", "reason status", "reclaimed"),
    ("janitor", "recovery_seconds", "_count", "reason", "lost"),
    ("scheduler", "ticks", "_total", "outcome", "ticks"),
]
