"""Runs in processes of their own, as their tests see them: what is announced to a process that
starts, what its agent has marked, and whether anything of it is left."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests import agents_in_processes
from tests.support import eventually, new_run

from researchcopilot.core.models import NewRun

ROOT = Path(__file__).parents[2]


def announce(installed: Path, marks: Path, environment: pytest.MonkeyPatch) -> None:
    """Processes that are started now find these agents."""
    paths = [str(installed), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
    environment.setenv(agents_in_processes.MARKS, str(marks))


def one_try(agent: str, given: Any = 0, **fields: Any) -> NewRun:
    return new_run(agent=agent, input=given, **{"max_attempts": 1, **fields})


async def marked(folder: Path, name: str) -> int:
    """The number that an agent has left under this name."""
    found: str = await eventually(
        lambda: (folder / name).exists() and (folder / name).read_text(), within=20
    )
    return int(found)


async def gone(pid: int) -> None:
    await eventually(lambda: not lives(pid))


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"  # a zombie is dead; its reaper may be slow


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
