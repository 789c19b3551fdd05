"""The parts of ours as processes: `python -m researchcopilot <part>`, ready when /readyz says so.

A part tells its ports in a file, so none is fixed. A part that ends before it is ready is an
error that shows the end of its log: that is where the reason stands.
"""

import http.client
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import researchcopilot
from researchcopilot.dev.processes import GENTLY, Child, Guard, Manner, StackError, until

HOST = "127.0.0.1"


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ`, with our package on the path also where it is run from a work tree."""
    home = str(Path(researchcopilot.__file__).parents[1])
    paths = [home, *environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


class Part:
    """One process of one part. `environ` is its whole environment; files go into `folder`."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        *,
        folder: Path,
        guard: Guard,
    ) -> None:
        slug = name.replace(" ", "-")
        self.name = name
        self._port_file = folder / f"{slug}.ports"
        ours = {"RC_HEALTH_PORT": "0", "RC_HEALTH_PORT_FILE": str(self._port_file)}
        self._child = Child(
            name,
            [sys.executable, "-m", "researchcopilot", *arguments],
            guard=guard,
            log=folder / f"{slug}.log",
            env=child_environment({**environ, **ours}),
        )

    @property
    def child(self) -> Child:
        return self._child

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def alive(self) -> bool:
        return self.child.alive

    @property
    def ports(self) -> dict[str, int]:
        """`{"health": …}`, of the api also `"api"`; empty until it listens."""
        try:
            return dict(json.loads(self._port_file.read_text()))
        except FileNotFoundError:
            return {}

    def launch(self) -> None:
        """Start it and do not wait."""
        self._port_file.unlink(missing_ok=True)
        self.child.start()

    def start(self, seconds: float = 30.0) -> None:
        self.launch()
        self.wait_ready(seconds)

    def wait_ready(self, seconds: float = 30.0) -> None:
        until(lambda: not self.alive or self.ready(), seconds, 0.02)
        if not self.alive:
            raise StackError(
                f"{self.name} ended before it was ready ({self.child.describe_end()}). "
                f"{self.last_words()}"
            )
        if not self.ready():
            raise StackError(
                f"{self.name} was not ready after {seconds:g} s: {self.complaint()}. "
                f"{self.last_words()}"
            )

    def ready(self) -> bool:
        return self.complaint() is None

    def complaint(self) -> str | None:
        """What /readyz says against it; None: nothing."""
        port = self.ports.get("health")
        if port is None:
            return "it does not listen yet"
        connection = http.client.HTTPConnection(HOST, port, timeout=2)
        try:
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace").strip()
        except (OSError, http.client.HTTPException) as error:
            return f"/readyz does not answer ({error})"
        finally:
            connection.close()
        return None if answer.status == 200 else text

    def stop(self, manner: Manner = GENTLY) -> int | None:
        return self.child.stop(manner)

    def kill(self) -> None:
        self.child.kill()

    def last_words(self, lines: int = 20) -> str:
        return f"The log of {self.name} ({self.child.log}) ends with:\n{self.child.tail(lines)}"
