"""Scratch folders vanish with whoever made them, also when that is a process that was killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from researchcopilot.agents.research.folders import scratch

CHILD = """
import os, sys
from pathlib import Path
from researchcopilot.agents.research.folders import scratch
with scratch(Path(sys.argv[1])) as folder:
    (folder / "half.written").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
    os._exit(1)
"""


def test_a_folder_is_removed_at_the_end_and_after_an_error(tmp_path: Path) -> None:
    with scratch(tmp_path / "work") as folder:
        (folder / "file").write_text("x")
    with pytest.raises(ValueError), scratch(tmp_path / "work"):
        raise ValueError
    assert list((tmp_path / "work").iterdir()) == []


def test_a_folder_that_was_moved_away_stays(tmp_path: Path) -> None:
    with scratch(tmp_path / "work") as folder:
        (folder / "file").write_text("x")
        folder.rename(tmp_path / "kept")
    assert (tmp_path / "kept" / "file").read_text() == "x"
    assert list((tmp_path / "work").iterdir()) == []


def test_the_folder_of_a_dead_process_is_cleared_and_that_of_a_living_one_is_not(
    tmp_path: Path,
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        theirs = Path(child.stdout.readline().strip())
        with scratch(tmp_path) as ours:
            assert theirs.is_dir()
            assert theirs != ours
        child.kill()
        child.wait(10)
        assert theirs.is_dir()
        with scratch(tmp_path) as ours:
            assert list(tmp_path.glob("*.lock")) == [ours.with_name(f"{ours.name}.lock")]
            assert not theirs.exists()
    finally:
        child.kill()
        child.communicate()
