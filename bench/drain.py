"""Drain: one worker process, empty agent, 256 slots, durable: runs a second from queue to success.

Beside it, in the same run, the same SQL (claim_1 and finish_1 on groups of 256) sent by pgbench,
which is written in C and does nothing else: what of that does the product reach?
"""

import asyncio
import subprocess
import tempfile

from bench.measure import Measured, figure
from bench.work import fill, opened, wait_ended
from researchcopilot.core.settings import Settings
from researchcopilot.dev.binaries import postgres_bin
from researchcopilot.dev.stack import Plan, Stack
from researchcopilot.dev.users import server_user
from researchcopilot.storage.db import Database

RUNS = 20_000
GROUP = 256
QUIET = {"RC_LOG_LEVEL": "warning", "RC_WORKER_QUEUES": f"runs={GROUP},system=1"}


def measure(rounds: int) -> list[Measured]:
    product = [asyncio.run(_product()) for _ in range(rounds)]
    bare = [_bare() for _ in range(rounds)]
    ratio = sorted(product)[rounds // 2] / sorted(bare)[rounds // 2]
    note = f"{RUNS:,} runs, one worker process, {GROUP} slots"
    return [
        figure("drain", "runs/s", product, note),
        figure("the same claim and finish sent by pgbench, groups of 256", "runs/s", bare),
        figure("drain against pgbench", "ratio", [ratio]),
    ]


async def _product() -> float:
    """Runs a second, from the first claim to the last finish by the database's clock."""
    with Stack(Plan(environ=QUIET)) as stack:
        stack.start_servers()
        stack.command("migrate")
        async with opened(stack.settings) as (db, queue):
            await fill(db, queue, RUNS)
            worker = stack.add("worker", "worker")
            worker.launch()
            seconds = await wait_ended(db, RUNS)
    return RUNS / seconds


def _bare() -> float:
    with Stack(Plan(environ=QUIET)) as stack:
        stack.start_servers()
        stack.command("migrate")
        asyncio.run(_prepare(stack.settings))
        return RUNS / _pgbench(stack)


async def _prepare(settings: Settings) -> None:
    async with opened(settings) as (db, queue):
        await fill(db, queue, RUNS)
        await _chunk(db)


async def _chunk(db: Database) -> None:
    await db.execute(b"CREATE SEQUENCE bench_chunk MINVALUE 0 START 0")
    await db.execute(
        b"CREATE TABLE bench_chunks AS SELECT chunk, array_agg(run_id) AS ids,"
        b" array_agg(1) AS ones, array_agg('succeeded'::text) AS kinds,"
        b' array_agg(\'{"echo": "x"}\'::jsonb) AS results, array_agg(NULL::jsonb) AS errors,'
        b" array_agg(0::float8) AS delays"
        b" FROM (SELECT (row_number() OVER (ORDER BY seq) - 1) / 256 AS chunk, run_id FROM runs) r"
        b" GROUP BY chunk"
    )
    await db.execute(b"CREATE UNIQUE INDEX ON bench_chunks (chunk)")
    await db.execute(b"ANALYZE bench_chunks")


SCRIPT = """\
SELECT nextval('bench_chunk') AS chunk \\gset
SELECT count(*) FROM bench_chunks b, claim_1(b.ids, \
'00000000-0000-7000-8000-000000000001', gen_random_uuid(), '15 s') WHERE b.chunk = :chunk;
SELECT count(*) FROM bench_chunks b, finish_1('00000000-0000-7000-8000-000000000001', \
b.ids, b.ones, b.kinds, b.results, b.errors, b.delays) WHERE b.chunk = :chunk;
"""


def _pgbench(stack: Stack) -> float:
    """Seconds for all chunks, with as many connections as the worker uses at once: two."""
    chunks = -(-RUNS // GROUP)
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(SCRIPT)
        script.flush()
        command = [
            str(postgres_bin(stack.folder, server_user()) / "pgbench"), "-n", "-c", "2", "-j", "2",
            "-t", str(chunks // 2), "-f", script.name, stack.postgres.url(),
        ]  # fmt: skip
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    [line] = [line for line in printed.splitlines() if line.startswith("tps")]
    return chunks / float(line.split()[2])
