"""The stack: one folder, two servers, and every part of ours as a process of its own.

    with Stack(Plan(workers=2)) as stack:
        stack.start()

Whatever happens inside the block, at its end no process is left, and no folder if it was a
temporary one. `Plan.data` None means a temporary one.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from researchcopilot.core import settings as core_settings
from researchcopilot.core.errors import ConfigError
from researchcopilot.core.settings import Settings
from researchcopilot.dev import ports
from researchcopilot.dev.binaries import postgres_major
from researchcopilot.dev.folder import Folder
from researchcopilot.dev.parts import HOST, Part
from researchcopilot.dev.postgres import Postgres
from researchcopilot.dev.processes import Guard, StackError, tail
from researchcopilot.dev.signals import uninterrupted
from researchcopilot.dev.valkey import Valkey

COMMAND_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """`environ` is what the parts are started with; RC_ variables in it hold unless the stack
    must decide (addresses of servers, ports). `api_port` 0: a free one."""

    data: Path | None = None
    workers: int = 2
    api_port: int = 0
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


class Stack:
    """All of it. `progress` surrounds each step of a start."""

    def __init__(
        self,
        plan: Plan,
        progress: Callable[[str], AbstractContextManager[None]] = lambda step: nullcontext(),
    ) -> None:
        self.plan = plan
        self.progress = progress
        self.parts: dict[str, Part] = {}
        self._begun = False
        core_settings.load(plan.environ)  # a typo is told once, before anything is started
        self._check_port()

    def __enter__(self) -> "Stack":
        self._folder = Folder(self.plan.data)
        self.folder = self._folder.path
        self._begun = True
        self._tidy()
        temporary = self.folder if self._folder.temporary else None
        try:
            self.guard = Guard(temporary, keep_open=[self._folder.lock])
        except BaseException:
            self._folder.close()
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
            raise
        self.postgres = Postgres(self.folder, self.guard)
        self.valkey = Valkey(self.folder, self.guard)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Servers, schema, parts; ready when it returns."""
        self.start_servers()
        self.command("migrate")
        self.start_parts()

    def start_servers(self) -> None:
        with self.progress(f"Postgres {postgres_major()}"):
            self.postgres.start()
        with self.progress("Valkey"):
            self.valkey.start()

    def start_parts(self) -> None:
        """All at once, then wait for each. The api keeps its port when it is started again."""
        port = self.plan.api_port or ports.free_port()
        self.add("api", "api", RC_API_PORT=str(port))
        for number in range(1, self.plan.workers + 1):
            cache = self._folder.sub("cache") / f"worker-{number}"
            self.add(f"worker {number}", "worker", RC_CACHE_DIR=str(cache))
        self.add("scheduler", "scheduler")
        self.add("janitor", "janitor")
        with self.progress(", ".join(self.parts)):
            for part in self.parts.values():
                part.launch()
            for part in self.parts.values():
                part.wait_ready()

    def add(self, name: str, part: str, **environ: str) -> Part:
        """A part of this stack, not started yet."""
        self.parts[name] = Part(
            name,
            [part],
            {**self.environment, **environ},
            folder=self._folder.sub("parts"),
            guard=self.guard,
        )
        return self.parts[name]

    def command(self, *arguments: str) -> str:
        """Run `python -m researchcopilot …` to its end; what it printed."""
        with self.progress(" ".join(arguments[:2])):
            return self._command(*arguments)

    def _command(self, *arguments: str) -> str:
        part = Part(
            arguments[0],
            arguments,
            self.environment,
            folder=self._folder.sub("parts"),
            guard=self.guard,
        )
        log = part.child.log
        log.write_bytes(b"")
        part.child.start()
        code = part.child.wait(COMMAND_SECONDS)
        if code is None:
            part.kill()
        if code != 0:
            why = f"did not end within {COMMAND_SECONDS:g} s" if code is None else "failed"
            raise StackError(f"`{' '.join(arguments)}` {why}:\n{tail(log)}")
        return log.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> None:
        """Parts first, so that they can put down what they hold; then servers, then the rest."""
        with uninterrupted():
            self._stop_parts()
            self.valkey.stop()
            self.postgres.stop()
            self.guard.close()
            self._folder.close()

    def _stop_parts(self) -> None:
        """All are asked at once; each is waited for and, in the end, killed."""
        for part in self.parts.values():
            part.child.ask()
        for part in self.parts.values():
            part.stop()

    @property
    def cleared(self) -> bool:
        """Is nothing of a temporary stack left, or was it never begun?"""
        return not (self._begun and self.folder.exists())

    @property
    def environment(self) -> dict[str, str]:
        """What a part of this stack is started with."""
        return {
            "RC_LOG_FORMAT": "text",
            "RC_DRAIN_SECONDS": "5",
            **self.plan.environ,
            "RC_DATABASE_URL": self.postgres.url(),
            "RC_REDIS_URL": self.valkey.url,
            "TMPDIR": str(self._folder.sub("tmp")),
        }

    @property
    def settings(self) -> Settings:
        return core_settings.load(self.environment)

    @property
    def api_url(self) -> str:
        return f"http://{HOST}:{self.parts['api'].ports['api']}"

    def _check_port(self) -> None:
        port = self.plan.api_port
        host = self.plan.environ.get("RC_API_HOST", HOST)
        if port and not ports.is_free(host, port):
            raise ConfigError(
                f"Port {port} on {host} is taken by another program. Free it, or choose another "
                "for the api: --port P or RC_API_PORT=P; with 0 a free one is taken."
            )

    def _tidy(self) -> None:
        """The logs of this time alone, those of the time before beside them; no old scratch."""
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)
        for log in (*self.folder.glob("*.log"), *self.folder.glob("parts/*.log")):
            log.replace(log.with_suffix(".log.before"))
