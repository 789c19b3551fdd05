"""`researchcopilot workspaces`, as people and scripts call it."""

import json
import subprocess
import sys
from collections.abc import Mapping

from researchcopilot.dev.parts import child_environment


def call(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "researchcopilot", "workspaces", *arguments],
        env=child_environment(environment),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_a_zone_is_set_shown_and_checked(environment: Mapping[str, str]) -> None:
    """Protects: what was set is shown; a typo is named with what it should be, and changes
    nothing."""
    done = call(environment, "zone", "default", "Asia/Shanghai")
    assert (done.returncode, done.stderr) == (0, "")
    assert "midnight in Asia/Shanghai" in done.stdout
    typo = call(environment, "zone", "default", "Asia/Shanghia")
    assert typo.returncode == 1
    assert "ZONE is not an IANA time zone" in typo.stderr
    assert "did you mean Asia/Shanghai?" in typo.stderr
    nobody = call(environment, "zone", "nobody", "UTC")
    assert (nobody.returncode, "nobody" in nobody.stderr) == (1, True)
    [line] = call(environment, "list", "--json").stdout.splitlines()
    assert {key: json.loads(line)[key] for key in ("name", "zone")} == {
        "name": "default",
        "zone": "Asia/Shanghai",
    }
    assert "Asia/Shanghai" in call(environment, "list").stdout
