"""A copy of the tree in which one line is gone, and one test that has to notice.

Only the copy is changed, never the tree. A test counts as red if it ran and failed by itself, with
the exception that its fault names: an error of collection, of a fixture, or a hang proves nothing.
"""

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.faults.fault import ROOT, BadFault, Fault

LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", ".dev", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info", "dist"
)
LIMIT_S = 120.0
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Seen:
    """What one test did. `what`: green, the exception that made it red, or why it says nothing."""

    what: str
    seconds: float
    text: str = ""


class Copy:
    """The tree in a folder of its own, and pytest in it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.root = folder / "tree"
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        shutil.copytree(ROOT, self.root, ignore=LEFT_OUT, symlinks=True)

    def environment(self) -> Mapping[str, str]:
        """The copy goes before whatever is installed, in every process that a test starts."""
        ours = {"PYTHONPATH": str(self.root / "services"), "TMPDIR": str(self._folder)}
        return {**os.environ, **ours, "NO_COLOR": "1"}

    def check(self) -> None:
        """Is it the copy that would be tested? Raises BadFault."""
        told = subprocess.run(
            [sys.executable, "-c", "import researchcopilot; print(researchcopilot.__file__)"],
            env=self.environment(), cwd=self.root, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        if not told.stdout.startswith(str(self.root)):
            raise BadFault(f"not the copy would be tested, but {told.stdout or told.stderr}")

    @contextmanager
    def without(self, fault: Fault) -> Iterator[None]:
        """The line is gone as long as this lasts."""
        path = self.root / fault.file
        text, times = path.read_text(encoding="utf-8"), path.stat()
        path.write_text(fault.mutated(text), encoding="utf-8")
        # Bytecode is taken for fresh by size and whole seconds: no two texts may share both.
        os.utime(path, (times.st_atime, int(times.st_mtime) + 2 * next(_numbers)))
        try:
            yield
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def run(self, nodes: Sequence[str], limit_s: float = LIMIT_S) -> dict[str, Seen]:
        """These tests, each by its node id."""
        report = self._folder / "report.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", *nodes, f"--junitxml={report}", "-q",
                   "-p", "no:cacheprovider", "-o", "junit_family=xunit1"]  # fmt: skip
        started = time.monotonic()
        text = self._finished(command, limit_s)
        if text is None:
            hung = Seen(f"no end within {limit_s:g} s", time.monotonic() - started)
            return dict.fromkeys(nodes, hung)
        found = _read(report) if report.exists() else {}
        lost = Seen("it did not run", time.monotonic() - started, text)
        return {node: _of(node, found) or lost for node in nodes}

    def stop(self) -> None:
        """Whatever runs here ends now, from another thread; its servers end with it."""
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _finished(self, command: Sequence[str], limit_s: float) -> str | None:
        """What it printed; None if it had to be killed."""
        with subprocess.Popen(
            command, cwd=self.root, env=self.environment(), text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as self._process:  # fmt: skip
            try:
                return self._process.communicate(timeout=limit_s)[0]
            except subprocess.TimeoutExpired:
                return None
            finally:
                self.stop()


def _of(node: str, found: Mapping[str, Seen]) -> Seen | None:
    """Of a test with parameters: the first that is not green."""
    mine = [seen for name, seen in found.items() if name == node or name.startswith(f"{node}[")]
    mine.sort(key=lambda seen: seen.what == "green")
    return mine[0] if mine else None


def _read(report: Path) -> dict[str, Seen]:
    found: dict[str, Seen] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        node = f"{case.get('file')}::{case.get('name')}"
        seen = _case(case)
        if node not in found or found[node].what == "green":
            found[node] = seen
    return found


def _case(case: ElementTree.Element) -> Seen:
    seconds = float(case.get("time") or 0)
    for kind in ("failure", "error", "skipped"):
        element = case.find(kind)
        if element is not None:
            text = element.text or ""
            # A failure ends with the place where it was raised, and what.
            raised = re.findall(r"^\S+:\d+: (\w+)$", text, re.MULTILINE)
            words = (element.get("message") or "no word").splitlines()[0]
            what = raised[-1] if kind == "failure" and raised else f"{kind}: {words[:60]}"
            return Seen(what, seconds, text)
    return Seen("green", seconds)
