"""Latency, idle: from the row's creation to its claim, and how late a delayed run is claimed.

One run at a time over HTTP through the whole stack; times are the database's own.
"""

import asyncio
import http.client
import json
from urllib.parse import urlsplit

from bench.measure import Measured, figure, percentile
from bench.work import opened, wait_ended
from researchcopilot.dev.stack import Plan, Stack

RUNS = 200
DELAYED = 50


def measure(rounds: int) -> list[Measured]:
    prompt, late = asyncio.run(_measure())
    return [
        figure("submit to claim, idle, p50", "ms", [percentile(prompt, 0.5)], f"{RUNS} runs"),
        figure("submit to claim, idle, p99", "ms", [percentile(prompt, 0.99)]),
        figure("due to claim of a delayed run, p50", "ms", [percentile(late, 0.5)],
               f"{DELAYED} runs"),
        figure("due to claim of a delayed run, p99", "ms", [percentile(late, 0.99)]),
    ]  # fmt: skip


async def _measure() -> tuple[list[float], list[float]]:
    with Stack(Plan(workers=1, environ={"RC_LOG_LEVEL": "warning"})) as stack:
        stack.start()
        key = stack.command("keys", "create", "--name", "bench", "--quiet").strip()
        async with opened(stack.settings) as (db, _):
            for number in range(RUNS):
                _post(stack.api_url, key, {"agent": "echo", "input": "x"})
                await wait_ended(db, number + 1)
            for number in range(DELAYED):
                _post(stack.api_url, key, {"agent": "echo", "input": "x", "delay_s": 0.3})
                await wait_ended(db, RUNS + number + 1)
            rows = await db.rows(
                b"SELECT run_at > created_at,"
                b" extract(epoch FROM started_at - run_at)::float8 * 1000 FROM runs"
            )
    return [ms for delayed, ms in rows if not delayed], [ms for delayed, ms in rows if delayed]


def _post(url: str, key: str, body: object) -> None:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/runs", json.dumps(body), headers)
    answer = connection.getresponse()
    if answer.status != 202:
        raise RuntimeError(f"{answer.status}: {answer.read()!r}")
    connection.close()
