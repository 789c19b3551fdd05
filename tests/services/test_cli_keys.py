"""`researchcopilot keys`, as people and scripts call it."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest

from researchcopilot.dev.parts import child_environment

Ended = subprocess.CompletedProcess[str]
Run = Callable[..., Ended]


@pytest.fixture
def run(environment: Mapping[str, str]) -> Run:
    def call(*arguments: str) -> Ended:
        return subprocess.run(
            [sys.executable, "-m", "researchcopilot", "keys", *arguments],
            env=child_environment(environment),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    return call


def test_a_key_lives_from_create_to_revoke(run: Run) -> None:
    """Protects: bare output for scripts on stdout, words for people on stderr, aligned lists."""
    made = run("create", "--workspace", "team-a", "--name", "my app")
    key = made.stdout.strip()
    assert (made.returncode, len(key), key[:3]) == (0, 46, "rc_")
    assert "not shown again" in made.stderr
    assert key not in made.stderr
    quiet = run("create", "--quiet")
    assert (len(quiet.stdout), quiet.stderr) == (47, "")
    assert json.loads(run("create", "--json").stdout)["key"].startswith("rc_")
    head, first, *rest = run("list").stdout.splitlines()
    assert head.split() == ["KEY_ID", "HINT", "WORKSPACE", "NAME", "CREATED", "REVOKED"]
    assert first.index("team-a") == head.index("WORKSPACE")
    assert len(rest) == 2
    assert key not in run("list", "--json").stdout
    ended = run("revoke", key[:9])
    assert (ended.returncode, ended.stdout.count("is revoked")) == (0, 1)
    [info] = json.loads(run("list", "--workspace", "team-a", "--json").stdout)
    assert info["revoked_at"] is not None
    assert len(run("list", "--quiet").stdout.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["revoke", "nope"], 1, "nope is no key_id or hint"),
        (["create", "--workspace", "Not Good"], 1, "cannot be a workspace"),
        (["create", "--quiet", "--json"], 2, "not allowed with"),
        ([], 2, "create|list|revoke"),
        (["list"], 0, "There are no keys yet"),
    ],
)
def test_what_goes_wrong_is_said(run: Run, arguments: list[str], code: int, words: str) -> None:
    """Protects: each mistake has an exit code and a sentence, and no stack trace."""
    ended = run(*arguments)
    assert ended.returncode == code
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
