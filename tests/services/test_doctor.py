"""`doctor` and `ensure-key`, as people, init containers and the chart's Job call them."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import Parts, Servers

from researchcopilot.dev.parts import child_environment
from researchcopilot.dev.processes import until

KEY = "rc_" + "k" * 43


def call(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "researchcopilot", *arguments],
        env=child_environment({"PATH": "/usr/bin:/bin", **environment}),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_whole_stack_is_well(parts: Parts) -> None:
    parts("worker")
    done = call(parts.environment, "doctor", "--json")
    found = {one["name"]: one["state"] for one in json.loads(done.stdout)}
    assert done.returncode == 0, done.stdout
    assert {name for name, state in found.items() if state == "ok"} == {
        "database", "schema", "redis", "eviction", "clock", "workers", "agents",
    }  # fmt: skip
    assert found["index"] == "warning"


def test_what_is_missing_is_told_with_what_to_do_and_without_passwords(
    environment: dict[str, str], servers: Servers
) -> None:
    empty = servers.postgres.url("postgres").replace("postgres@", "postgres:secret@")
    broken = {"RC_DATABASE_URL": empty, "RC_REDIS_URL": "redis://:secret@127.0.0.1:1/0"}
    done = call({**environment, **broken}, "doctor")
    assert done.returncode == 1
    assert "migrate" in done.stdout
    assert "Redis does not answer" in done.stdout
    assert "secret" not in done.stdout + done.stderr


def test_a_name_that_does_not_resolve_yet_is_told_at_once(environment: dict[str, str]) -> None:
    """Protects: DNS that is not there at the start of a release. The pool alone would say after
    ten seconds that it had waited for ten seconds."""
    away = {**environment, "RC_DATABASE_URL": "postgresql://x:secret@db.nowhere.invalid/x"}
    begun = time.monotonic()
    done = call(away, "doctor", "--only", "database,schema", "--wait", "0.5")
    assert time.monotonic() - begun < 9
    assert done.returncode == 1
    assert "failed to resolve host 'db.nowhere.invalid'" in done.stdout
    assert "waiting for database: Postgres does not answer: failed to resolve" in done.stderr
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.parametrize("part", ["api", "worker", "scheduler", "janitor"])
def test_a_part_waits_for_a_name_and_says_so(parts: Parts, part: str) -> None:
    """Protects: no restart and no CrashLoopBackOff over it, and /readyz that names the reason."""
    away = "postgresql://x:secret@db.nowhere.invalid/x"
    waiting = parts.launch(part, RC_DATABASE_URL=away)
    said = "waits: Postgres does not answer: failed to resolve host 'db.nowhere.invalid'"
    assert until(lambda: said in (waiting.complaint() or ""), 20), waiting.complaint()
    assert waiting.alive
    assert waiting.stop() == 0


def test_only_some_checks_and_a_wait_that_ends(environment: dict[str, str]) -> None:
    away = {**environment, "RC_DATABASE_URL": "postgresql://x@127.0.0.1:1/x"}
    done = call(environment, "doctor", "--only", "database,schema", "--wait", "5")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2)
    done = call(away, "doctor", "--only", "redis")
    assert done.returncode == 0, done.stderr
    done = call(environment, "doctor", "--only", "databse")
    assert done.returncode == 2
    assert "databse" in done.stderr


def test_a_given_key_is_made_to_work_and_that_twice(
    environment: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    for words in ("added", "known already"):
        done = call(environment, "ensure-key", "--file", str(file), "--name", "chart")
        assert done.returncode == 0, done.stderr
        assert words in done.stdout
    assert KEY not in done.stdout
    done = call(environment, "ensure-key", "--file", str(file), "--workspace", "other")
    assert done.returncode == 1
    assert "another workspace" in done.stderr
    assert call(environment, "keys", "revoke", KEY[:9]).returncode == 0
    done = call(environment, "ensure-key", "--file", str(file))
    assert done.returncode == 1
    assert "revoked" in done.stderr


def test_a_file_that_holds_no_key_is_refused_without_showing_it(
    environment: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("hunter2")
    for path in (file, tmp_path / "missing"):
        done = call(environment, "ensure-key", "--file", str(path))
        assert done.returncode == 2
        assert str(path) in done.stderr
        assert "hunter2" not in done.stderr
