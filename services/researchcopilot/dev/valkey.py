"""Valkey for one machine, on a free port of 127.0.0.1, which it keeps through a restart.

`noeviction` always: a queue that forgets entries under pressure is worse than one that refuses.
With `appendonly` it comes back with what it knew; without, a restart is an empty Redis, and the
janitor rebuilds it from Postgres.
"""

import os
import signal
import socket
from pathlib import Path

from researchcopilot.dev import ports
from researchcopilot.dev.binaries import valkey_server
from researchcopilot.dev.processes import Child, Guard, Manner, StackError, until
from researchcopilot.dev.users import give, server_user

HOST = "127.0.0.1"
MANNER: Manner = ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0))


class Valkey:
    """One server over `folder`/valkey."""

    def __init__(self, folder: Path, guard: Guard, *, appendonly: bool = True) -> None:
        self.data = folder / "valkey"
        self.log = folder / "valkey.log"
        self.port = 0
        self.appendonly = appendonly
        self._folder = folder
        self._guard = guard
        self._user = server_user()
        self._child: Child | None = None

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def child(self) -> Child:
        assert self._child is not None, "Valkey was never started"
        return self._child

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.alive

    def start(self, seconds: float = 15.0) -> None:
        """Start and wait until it answers PING, its files loaded."""
        if not self.data.exists():
            self.data.mkdir(mode=0o700)
            give(self.data, self._user)
        for attempt in range(5):
            self.port = self.port or ports.free_port(HOST)
            self._start_child()
            until(lambda: not self.alive or self.answers(), seconds)
            if self.alive and self.answers():
                return
            if attempt == 4 or "bind" not in self.child.tail(10):
                break
            self.port = 0
        end = self.child.describe_end()
        self.kill()
        raise StackError(
            f"Valkey did not start ({end}). Its log {self.log} ends with:\n{self.child.tail()}"
        )

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop(MANNER)

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def clear(self) -> None:
        """Remove its files while it is down: what comes back is an empty Redis."""
        assert not self.alive, "stop Valkey first"
        for found in self.data.rglob("*"):
            if found.is_file():
                os.unlink(found)

    def answers(self) -> bool:
        """Asked in its own protocol: a client library is no business of this room."""
        try:
            with socket.create_connection((HOST, self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def _start_child(self) -> None:
        settings = {
            "bind": HOST,
            "port": str(self.port),
            "dir": str(self.data.absolute()),
            "maxmemory-policy": "noeviction",
            "appendonly": "yes" if self.appendonly else "no",
            "appendfsync": "everysec",
            "save": "",
            "daemonize": "no",
        }
        command = [str(valkey_server(self._folder, self._user))]
        for name, value in settings.items():
            command += [f"--{name}", value]
        self._child = Child(
            "valkey", command, guard=self._guard, log=self.log, user=self._user,
            at_parents_death=signal.SIGTERM if self.appendonly else signal.SIGKILL,
        )  # fmt: skip
        self._child.start()
