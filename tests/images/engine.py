"""buildah and podman as the tests use them: no daemon, no rights beyond chroot and runc.

Containers get what the chart gives them: an arbitrary number as user, a read-only root, no
capabilities, and /tmp to write in. Builds may read this machine's certificates, nothing else of it.
"""

import json
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TARGETS = ("janitor", "scheduler", "operator", "api", "worker")
LIMITS = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
HARD = (
    "--read-only",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--tmpfs=/tmp:rw,mode=1777",
)


def image(target: str) -> str:
    return f"localhost/researchcopilot-{target}:tests"


def call(*command: str, seconds: float = 60, check: bool = True) -> str:
    """What it printed, both streams. Raises with all of it if it failed."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds
    )
    if check and done.returncode:
        raise AssertionError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}")
    return done.stdout


class Engine:
    """Containers started through it have one mark in their names, and are removed by it."""

    def __init__(self) -> None:
        self._mark = f"rc-tests-{uuid.uuid4().hex[:8]}"
        self._started: list[str] = []

    def build(self, target: str, folder: Path = ROOT, name: str = "") -> None:
        call(
            # Without layers: Debian 12's buildah reuses one although its build arguments differ.
            "buildah", "build", "--isolation=chroot", "--layers=false", "--pull-never", *LIMITS,
            f"--volume={CERTIFICATES}:{CERTIFICATES}:ro",
            *([f"--target={target}"] if target else []),
            f"--build-arg=VERSION=tests-{target}", f"--tag={name or image(target)}", str(folder),
            seconds=900,
        )  # fmt: skip

    def config(self, target: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(call("podman", "image", "inspect", image(target)))[0]
        return found

    def run(self, name: str, *arguments: str, user: str = "10001:10001", **options: str) -> str:
        """One command in a container, to its end, without any network."""
        more = [f"--{option}={value}" for option, value in options.items()]
        return call(
            "podman", "run", "--rm", "--runtime=runc", "--network=none", f"--user={user}",
            *LIMITS, *HARD, *more, name, *arguments,
        )  # fmt: skip

    def python(self, name: str, code: str) -> str:
        """What this code prints in that image."""
        return self.run(name, "-c", code, entrypoint="/app/bin/python").strip()

    def start(self, target: str, environment: Mapping[str, str], *arguments: str) -> str:
        """A container on this machine's network that goes on; its name."""
        name = f"{self._mark}-{target}-{len(self._started)}"
        self._started.append(name)
        variables = [f"--env={key}={value}" for key, value in environment.items()]
        call(
            "podman", "run", "--detach", f"--name={name}", "--runtime=runc", "--network=host",
            "--user=23456:0", *LIMITS, *HARD, *variables, image(target), *arguments,
        )  # fmt: skip
        return name

    def logs(self, name: str) -> str:
        return call("podman", "logs", name, check=False)

    def ended(self, name: str, seconds: float = 30) -> int:
        """Its exit code, once it has ended by itself."""
        return int(call("podman", "wait", name, seconds=seconds))

    def kill(self, name: str, signal: str = "TERM") -> None:
        call("podman", "kill", f"--signal={signal}", name)

    def remove_containers(self) -> None:
        for name in self._started:
            call("podman", "rm", "--force", "--time=0", name, check=False)

    def table(self) -> str:
        """Size and number of packages of each image, as measured now."""
        lines = [f"{'image':<10} {'MB':>6} {'/app MB':>8} {'packages':>9}"]
        for target in TARGETS:
            size = self.config(target)["Size"] / 1e6
            code = (
                "import importlib.metadata as m, os;"
                "s = {(i.st_dev, i.st_ino): i.st_blocks * 512 for d, _, f in os.walk('/app')"
                " for i in (os.lstat(os.path.join(d, n)) for n in f)};"
                "print(sum(s.values()) / 1e6, len(list(m.distributions())))"
            )
            app, packages = self.python(image(target), code).split()
            lines.append(f"{target:<10} {size:>6.0f} {float(app):>8.1f} {packages:>9}")
        return "\n".join(lines)
