"""The script of `helm test`, against a real api and worker: it says whether runs get through."""

import subprocess
import sys

from tests.chart.engine import CHART
from tests.conftest import Parts

from researchcopilot.dev.parts import Part


def submit(api: Part, key: str, seconds: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(CHART / "files/submit.py")],
        env={
            "API_URL": f"http://127.0.0.1:{api.ports['api']}",
            "API_KEY": key,
            "TIMEOUT_SECONDS": seconds,
        },
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_it_succeeds_with_a_run_and_fails_with_a_reason(parts: Parts) -> None:
    api, worker = parts("api"), parts("worker")
    key = parts.new_key()
    done = submit(api, key, "20")
    assert done.returncode == 0, done.stderr
    assert "succeeded" in done.stdout

    refused = submit(api, "rc_" + "x" * 43, "0")
    assert refused.returncode == 1
    assert "401" in refused.stderr

    worker.stop()
    left = submit(api, key, "0")
    assert left.returncode == 1
    assert "is a worker there?" in left.stderr
