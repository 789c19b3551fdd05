"""Accept over HTTP: two api processes behind their own ports, one run a request, 64 connections.

Load comes from `wrk` (written in C) where it is installed; it shares the two cores with everything
else. Batches of 100 runs are measured the same way. No worker runs: this is the way in alone.
"""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from bench.measure import Measured, figure
from researchcopilot.core.errors import ConfigError
from researchcopilot.dev.stack import Plan, Stack

SECONDS = 8
CONNECTIONS = 64
BATCH = 100
LUA = """\
wrk.method = "POST"
wrk.path = "{path}"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer {key}"
wrk.body = [==[{body}]==]
done = function(summary, latency, requests)
  io.write(string.format(
    'RESULT {{"requests": %d, "seconds": %f, "p50": %f, "p99": %f, "bad": %d}}\\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3,
    latency:percentile(99) / 1e3, summary.errors.status + summary.errors.timeout))
end
"""


def measure(rounds: int) -> list[Measured]:
    if shutil.which("wrk") is None:
        raise ConfigError("`wrk` is needed for this: apt-get install wrk (Debian).")
    single, p99, batch = [], [], []
    with Stack(Plan(workers=1, environ={"RC_LOG_LEVEL": "warning"})) as stack:
        urls, key = both_apis(stack)
        for _ in range(rounds):
            found = load(urls, key, "/v1/runs", {"agent": "echo", "input": "x"})
            single.append(found["rate"])
            p99.append(found["p99"])
        # After those: Postgres is busy with what batches have written for longer than a round.
        many = {"runs": [{"agent": "echo", "input": "x"}] * BATCH}
        for _ in range(rounds):
            batch.append(load(urls, key, "/v1/runs:batch", many)["rate"] * BATCH)
    note = f"two api processes, {CONNECTIONS} connections, {SECONDS} s"
    return [
        figure("accept, one run a request", "runs/s", single, note),
        figure("accept, one run a request, p99", "ms", p99),
        figure(f"accept, batches of {BATCH}", "runs/s", batch, note),
    ]


def both_apis(stack: Stack) -> tuple[list[str], str]:
    """A stack where only the way in is left: the addresses of its two apis, and a key."""
    stack.start()
    stack.parts["worker 1"].stop()  # it has announced the agents
    key = stack.command("keys", "create", "--name", "bench", "--quiet").strip()
    return [stack.api_url, _second_api(stack)], key


def _second_api(stack: Stack) -> str:
    part = stack.add("api 2", "api", RC_API_PORT="0")
    part.start()
    return f"http://127.0.0.1:{part.ports['api']}"


def load(urls: list[str], key: str, path: str, body: object) -> dict[str, float]:
    """Both processes at once, half of the connections each; rates add up, the worse p99 counts."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "post.lua"
        script.write_text(LUA.format(path=path, key=key, body=json.dumps(body)))
        running = [
            subprocess.Popen(
                ["wrk", "-t1", f"-c{CONNECTIONS // len(urls)}", f"-d{SECONDS}s", "-s",
                 str(script), url],
                stdout=subprocess.PIPE, text=True,
            )
            for url in urls
        ]  # fmt: skip
        found = [_result(process.communicate(timeout=SECONDS + 30)[0]) for process in running]
    if any(one["bad"] for one in found):
        raise RuntimeError(f"some requests were refused: {found}")
    return {
        "rate": sum(one["requests"] / one["seconds"] for one in found),
        "p99": max(one["p99"] for one in found),
    }


def _result(printed: str) -> dict[str, float]:
    [line] = [line for line in printed.splitlines() if line.startswith("RESULT ")]
    return dict(json.loads(line.removeprefix("RESULT ")))
