"""`dev` and `demo` from outside, as a person starts them: they work, and leave nothing behind."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from researchcopilot.dev.client import Client
from researchcopilot.dev.folder import temporary_folder
from researchcopilot.dev.parts import child_environment
from researchcopilot.dev.processes import StackError, tail, until

LIMIT = 60.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that the servers' user can reach, which tmp_path is not."""
    path = temporary_folder()
    yield path
    shutil.rmtree(path, ignore_errors=True)


def environment(folder: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RC_")}
    return child_environment({**clean, "TMPDIR": str(folder)})


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "researchcopilot", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        env=environment(folder),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], word: str) -> str:
    """What it prints, up to the line with `word`."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if word in line:
            return text
    raise AssertionError(f"it ended without {word!r}:\n{text}")


def living(folder: Path) -> dict[int, str]:
    """The command lines of what has to do with this folder: parts have it in their TMPDIR."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command, environ = ((place / name).read_bytes() for name in ("cmdline", "environ"))
        except OSError:
            continue
        if str(folder).encode() in command + environ:
            found[int(place.name)] = command.replace(b"\0", b" ").decode()
    return found


def logs(data: Path) -> str:
    """What the parts and servers said, for the one who asks why it failed."""
    files = [*data.glob("*.log"), *data.glob("parts/*.log")]
    return "\n".join(f"{file.name}:\n{tail(file, 15)}" for file in files)


def test_dev_works_keeps_its_data_and_leaves_nothing_running(folder: Path) -> None:
    data = folder / "data"
    keys = set()
    for _ in range(2):
        with started(folder, "dev", "--data", str(data), "--workers", "1") as process:
            text = read_until(process, "Stop it")
            (url,) = re.findall(r"API +(http://\S+)", text)
            (key,) = re.findall(r"API key +(rc_\S+)", text)
            with Client(url, key) as client:
                run = client.post("/v1/runs", {"agent": "echo", "input": {"say": "hello"}})
                done = client.get(f"/v1/runs/{run['run_id']}?wait=30")
            assert done["status"] == "succeeded", logs(data)
            keys.add(key)
            second = subprocess.run(
                [sys.executable, "-m", "researchcopilot", "dev", "--data", str(data)],
                capture_output=True, text=True, env=environment(folder), timeout=LIMIT,
            )  # fmt: skip
            assert second.returncode == 2
            assert f"in use by another stack (process {process.pid})" in second.stderr
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT) == 0
        assert living(folder) == {}
    assert len(keys) == 1, "the second start did not find the data of the first"


def test_dev_starts_a_part_again_that_crashes_where_it_was(folder: Path) -> None:
    with started(folder, "dev", "--data", str(folder / "data"), "--workers", "1") as process:
        text = read_until(process, "Stop it")
        (url,) = re.findall(r"API +(http://\S+)", text)
        (key,) = re.findall(r"API key +(rc_\S+)", text)
        (api,) = (pid for pid, command in living(folder).items() if command.endswith("api "))
        os.kill(api, signal.SIGKILL)
        assert "api crashed (signal SIGKILL)" in read_until(process, "was started again")
        assert until(lambda: answers(url, key), LIMIT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0
    assert living(folder) == {}


def answers(url: str, key: str) -> bool:
    try:
        with Client(url, key) as client:
            return "data" in client.get("/v1/runs")
    except StackError:
        return False


def test_the_demo_succeeds_and_leaves_nothing_behind(folder: Path) -> None:
    with started(folder, "demo") as process:
        text = read_until(process, "the folder is gone")
        assert process.wait(LIMIT) == 0
    life = re.findall(r"  D  (running|kill -9|queued|succeeded) +(worker \d)", text)
    victim = life[0][1]
    assert [state for state, _ in life] == ["running", "kill -9", "queued", "running", "succeeded"]
    assert [who == victim for _, who in life] == [True, True, True, False, False]
    assert "All 9 runs succeeded" in text
    assert living(folder) == {}
    assert os.listdir(folder) == []


def test_a_demo_that_is_interrupted_leaves_nothing_behind(folder: Path) -> None:
    with started(folder, "demo") as process:
        read_until(process, "Valkey")
        assert living(folder)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 130
    assert until(lambda: living(folder) == {}, LIMIT)
    assert os.listdir(folder) == []
