"""The stage of a chaos test: the embedded stack with two apis and small leases, and hands on it.

Everything that a fault does to a process or a server is a verb here. All are blocking; the driver
calls them from threads. Whoever works on a part holds its lock: two faults never meet at one part.
Spare parts (a second janitor, a second scheduler) run only while a fault wants them.
"""

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from tests.chaos import agents
from tests.chaos.proxy import Network
from tests.chaos.wiring import ROOT, Wired

from researchcopilot.dev import ports
from researchcopilot.dev.keys import api_key
from researchcopilot.dev.parts import Part
from researchcopilot.dev.postgres import Postgres
from researchcopilot.dev.processes import Manner, until
from researchcopilot.dev.stack import Plan
from researchcopilot.dev.valkey import Valkey

WORKERS = 3
SERVERS = ("Postgres", "Valkey")
SPARE = ("janitor 2", "scheduler 2")
# Of what a fault takes hold of: a part's lines to the servers are not the part.
LINES = "lines of "
PATIENTLY: Manner = ((signal.SIGTERM, 40.0), (signal.SIGKILL, 5.0))


def environment(lease_s: float) -> dict[str, str]:
    """Of the parts: no setting of whoever starts the test, and small leases."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RC_")}
    return {
        **clean,
        "RC_LOG_FORMAT": "json",
        "RC_LEASE_SECONDS": f"{lease_s:g}",
        "RC_SWEEP_SECONDS": f"{lease_s / 4:g}",
        "RC_PROBE_SECONDS": "0.5",
        "RC_PROBE_SLACK_SECONDS": "0.5",
        "RC_RETRY_BASE_SECONDS": "0.1",
        "RC_RETRY_CAP_SECONDS": "1",
        "RC_DRAIN_SECONDS": "0.5",
        "RC_WORKER_QUEUES": "runs=16,system=2",
        # However often its workers are killed, a run ends as its agent says: that is checked.
        "RC_MAX_LOSSES": "100",
    }


class Stage:
    """The stack, started inside `with`. `complaints`: parts that ended in a way they may not."""

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self.complaints: list[str] = []
        self._environ = environment(lease_s)
        self.over = threading.Event()  # a thread must not wait for a test that was broken off
        self.network = Network()
        self.stack = Wired(Plan(workers=WORKERS, environ=self._environ), self.network)
        self.spare: dict[str, Part] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._commands: dict[str, list[str]] = {}
        self.key = ""

    def __enter__(self) -> "Stage":
        self.stack.__enter__()
        folder = self.stack.folder / "chaos"
        folder.mkdir()
        agents.distribute(folder)
        paths = [str(folder), str(ROOT), *self._environ.get("PYTHONPATH", "").split(os.pathsep)]
        self._environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        return self

    def __exit__(self, *error: object) -> None:
        for part in (*self.stack.parts.values(), *self.spare.values()):
            part.child.send(signal.SIGCONT)
        for part in self.spare.values():
            part.kill()
        self.stack.stop()
        self.network.close()

    def start_servers(self) -> None:
        self.stack.start_servers()
        self.stack.command("migrate")
        self.key = api_key(self.stack)

    def start_parts(self) -> None:
        self.stack.add("api 2", "api", RC_API_PORT=str(ports.free_port()))
        self.stack.start_parts()
        for name in SPARE:
            self.stack.add(name, name.partition(" ")[0])
            self.spare[name] = self.stack.parts.pop(name)
        self._locks = {name: threading.Lock() for name in self.names()}

    def names(self) -> list[str]:
        """All that a fault can take hold of."""
        parts = list(self.stack.parts)
        return [*parts, *(LINES + name for name in parts), *SERVERS, *SPARE]

    @property
    def accepted_file(self) -> Path:
        return self.stack.folder / "chaos" / "accepted"

    def urls(self) -> list[str]:
        """The apis that say that they listen. One that was killed said so too."""
        found = [self.stack.parts[name].ports.get("api") for name in ("api", "api 2")]
        return [f"http://127.0.0.1:{port}" for port in found if port is not None]

    def logs(self) -> list[Path]:
        return sorted((self.stack.folder / "parts").glob("*.log"))

    def keep_logs(self, folder: Path) -> None:
        """All logs, and the accepted ids, before the folder of the stack is removed."""
        folder.mkdir(parents=True, exist_ok=True)
        servers = sorted(self.stack.folder.glob("*.log"))
        for file in (*self.logs(), *servers, self.accepted_file):
            if file.exists():
                shutil.copy(file, folder)

    # Who is free, and whose it is

    @contextmanager
    def holding(self, *names: str) -> Iterator[bool]:
        """All of these, if all are free now; False if not."""
        held: list[threading.Lock] = []
        try:
            free = all(self._try(name, held) for name in names)
            yield free
        finally:
            for lock in held:
                lock.release()

    @contextmanager
    def patiently_holding(self, name: str) -> Iterator[None]:
        with self._locks[name]:
            yield

    def _try(self, name: str, held: list[threading.Lock]) -> bool:
        lock = self._locks[name]
        if lock.acquire(blocking=False):
            held.append(lock)
            return True
        return False

    # Verbs

    def part(self, name: str) -> Part:
        return self.spare[name] if name in self.spare else self.stack.parts[name]

    def server(self, name: str) -> Postgres | Valkey:
        return self.stack.postgres if name == "Postgres" else self.stack.valkey

    def kill(self, name: str) -> int:
        """kill -9; 1 if it was that which ended it."""
        part = self.part(name)
        part.kill()
        return int(part.child.exit_code == -signal.SIGKILL)

    def start(self, name: str, clock_s: float = 0.0) -> None:
        """`clock_s`: its clock is wrong by so much; see `skewed`."""
        child = self.part(name).child
        right = self._commands.setdefault(name, list(child.command))
        wrong = [right[0], "-m", "tests.chaos.skewed", f"{clock_s:g}", *right[3:]]
        child.command[:] = wrong if clock_s else right
        self.part(name).start(60.0)

    def stop_going(self, name: str) -> int:
        """SIGSTOP; 1 once it has been seen to stand still."""
        child = self.part(name).child
        child.send(signal.SIGSTOP)
        return int(until(lambda: _state(child.pid) == "T", 5.0))

    def pause(self, name: str, seconds: float) -> int:
        """SIGSTOP, for so long; 1 if it was seen to stand still."""
        try:
            stopped = self.stop_going(name)
            time.sleep(seconds)
        finally:
            self.part(name).child.send(signal.SIGCONT)
        return stopped

    def ask_to_stop(self, name: str) -> int:
        """SIGTERM. It has to end by itself, with code 0, also while a server is away."""
        code = self.part(name).stop(PATIENTLY)
        if code != 0:
            self.complaints.append(f"{name} was asked to stop and ended with {code}")
        return int(code == 0)

    def restart(self, name: str) -> int:
        """A server; 1 if it is another process then."""
        server = self.server(name)
        before = server.child.pid
        server.restart()
        return int(server.child.pid != before)

    def redis(self) -> "redis.Redis":
        """A connection that goes over no line."""
        return redis.Redis(port=self.stack.valkey.port, decode_responses=True)

    def empty_redis(self) -> None:
        self.stack.valkey.stop()
        self.stack.valkey.clear()
        self.stack.valkey.start()

    def pid(self, name: str) -> int:
        return self.stack.parts[name].pid

    def look(self) -> None:
        """A part that nobody works on and that is dead has ended by itself."""
        for name, part in self.stack.parts.items():
            with self.holding(name) as free:
                if free and not part.alive:
                    self.complaints.append(_end_of(part))
                    part.launch()

    def stop_parts(self) -> None:
        """All are asked at once, and each has to end with code 0."""
        for part in self.stack.parts.values():
            part.child.ask()
        for name in self.stack.parts:
            self.ask_to_stop(name)

    def entries(self) -> dict[str, list[str]]:
        """What stands in the lists and sets of all queues, but for the janitor's marks."""
        found: dict[str, list[str]] = {}
        with self.redis() as client:
            for key in client.scan_iter("queue:*", count=1000):
                entries = _entries(client, key)
                if entries:
                    found[key] = entries
        return found


def _entries(client: "redis.Redis", key: str) -> list[str]:
    kind = client.type(key)
    if key.endswith(":done"):
        return []
    texts: list[str] = []
    if kind == "list":
        texts = client.lrange(key, 0, -1)  # type: ignore[assignment]
    elif kind == "zset":
        texts = client.zrange(key, 0, -1)  # type: ignore[assignment]
    return [text for text in texts if not text.startswith("probe.")]


def _state(pid: int) -> str:
    """T: stopped. Of a Linux; elsewhere nobody can say."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _end_of(part: Part) -> str:
    return f"{part.name} ended by itself ({part.child.describe_end()}). {part.last_words(10)}"
