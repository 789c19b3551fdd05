"""`researchcopilot doctor`: is everything there that the parts need, and if not, what to do?

For people, and for init containers (`--only database,schema --wait 600`). Exit code 0 if nothing
is bad; a warning is no fault. No password is ever printed.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from researchcopilot.core.errors import ConfigError, ResearchCopilotError
from researchcopilot.core.settings import Settings, load
from researchcopilot.runtime import log
from researchcopilot.storage import depths, recovery
from researchcopilot.storage.checks import check_postgres, check_redis
from researchcopilot.storage.db import Database
from researchcopilot.storage.migrate import check_schema
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.workers import known_agents

PAUSE_S = 1.0
CLOCK_S = 1.0


@dataclass(frozen=True, slots=True)
class Finding:
    """`state` is ok, warning or bad."""

    name: str
    state: str
    text: str


@dataclass(frozen=True, slots=True)
class Patient:
    settings: Settings
    db: Database
    redis: Queue


Check = Callable[[Patient], Awaitable[tuple[str, str]]]


async def _database(patient: Patient) -> tuple[str, str]:
    begun = time.monotonic()
    await check_postgres(patient.db)
    ms = (time.monotonic() - begun) * 1000
    return "ok", f"{place(patient.settings.database.url)} answers after {ms:.0f} ms"


async def _schema(patient: Patient) -> tuple[str, str]:
    await check_schema(patient.db)
    return "ok", "every migration of this version is applied"


async def _redis(patient: Patient) -> tuple[str, str]:
    begun = time.monotonic()
    await check_redis(patient.redis)
    ms = (time.monotonic() - begun) * 1000
    return "ok", f"{place(patient.settings.redis.url)} answers after {ms:.0f} ms"


async def _eviction(patient: Patient) -> tuple[str, str]:
    policy = (await patient.redis.facts()).eviction
    if policy is None:
        return "ok", "cannot be read here (CONFIG is not allowed): make sure that it is noeviction"
    if policy != "noeviction":
        return (
            "warning",
            f"maxmemory-policy is {policy}: set it to noeviction, else pushes are lost",
        )
    return "ok", "maxmemory-policy is noeviction"


async def _clock(patient: Patient) -> tuple[str, str]:
    postgres = await recovery.database_time(patient.db) / 1e6
    redis = await depths.redis_clock(patient.redis)
    here = time.time()
    apart = max(postgres, redis, here) - min(postgres, redis, here)
    text = f"Postgres, Redis and this machine are {apart:.2f} s apart"
    if apart > CLOCK_S:
        return "warning", f"{text}: let all keep time by NTP, else delayed runs start early or late"
    return "ok", text


async def _agents(patient: Patient) -> tuple[str, str]:
    names = [agent.name for agent in await known_agents(patient.db)]
    if not names:
        return "warning", "no worker has announced an agent yet: start one, else runs are refused"
    return "ok", ", ".join(names)


async def _workers(patient: Patient) -> tuple[str, str]:
    stale_s = 3 * patient.settings.recovery.lease_s
    rows = await depths.rows_by_queue(patient.db, stale_s=stale_s)
    idle = [name for name, row in rows.items() if row.oldest_s is not None and not row.workers]
    if idle:
        return "warning", f"runs wait, but no live worker serves {', '.join(idle)}: scale one up"
    served = [f"{name}: {row.workers}" for name, row in rows.items() if row.workers]
    return ("ok", ", ".join(served)) if served else ("warning", "no worker is alive: start one")


async def _index(patient: Patient) -> tuple[str, str]:
    ages = await depths.index_ages(patient.db)
    if not ages:
        return "warning", "there is no index yet: `researchcopilot corpus add` documents"
    return "ok", ", ".join(f"{one.workspace}: version {one.version}" for one in ages)


CHECKS: dict[str, Check] = {
    "database": _database,
    "schema": _schema,
    "redis": _redis,
    "eviction": _eviction,
    "clock": _clock,
    "workers": _workers,
    "agents": _agents,
    "index": _index,
}
# What a check stands on: if that is bad, the check could only repeat it, slowly.
NEEDS = {
    "schema": ("database",),
    "eviction": ("redis",),
    "clock": ("database", "redis"),
    "workers": ("database", "schema"),
    "agents": ("database", "schema"),
    "index": ("database", "schema"),
}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="researchcopilot doctor", description=__doc__)
    parser.add_argument("--only", help=f"some of {','.join(CHECKS)}")
    parser.add_argument(
        "--wait", type=float, default=0, metavar="SECONDS", help="until all is well"
    )
    parser.add_argument("--json", action="store_true", help="JSON")
    arguments = parser.parse_args(argv)
    names = arguments.only.split(",") if arguments.only else list(CHECKS)
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        raise ConfigError(f"doctor knows no {', '.join(unknown)}; it knows {', '.join(CHECKS)}.")
    settings = load(os.environ)
    log.setup("error", settings.log.format)
    findings = asyncio.run(_examine(settings, names, arguments.wait))
    _print(findings, as_json=arguments.json)
    return 1 if any(one.state == "bad" for one in findings) else 0


async def _examine(settings: Settings, names: Sequence[str], wait_s: float) -> list[Finding]:
    """Once, or again and again until nothing is bad or the time is over."""
    patient = Patient(settings, Database(settings.database), Queue(settings.redis))
    await patient.db.open()
    end, told = time.monotonic() + wait_s, ""
    try:
        while True:
            findings = await _round(patient, names)
            bad = [f"{one.name}: {one.text}" for one in findings if one.state == "bad"]
            if not bad or time.monotonic() >= end:
                return findings
            if told != (told := "; ".join(bad)):
                print(f"waiting for {told}", file=sys.stderr, flush=True)
            await asyncio.sleep(PAUSE_S)
    finally:
        await patient.redis.close()
        await patient.db.close()


async def _round(patient: Patient, names: Sequence[str]) -> list[Finding]:
    """These checks, after those that they stand on; each once."""
    found: dict[str, Finding] = {}
    for name in names:
        for one in (*NEEDS.get(name, ()), name):
            if one not in found:
                bad = [n for n in NEEDS.get(one, ()) if n in found and found[n].state == "bad"]
                found[one] = (
                    Finding(one, "warning", f"not looked at: {bad[0]} is bad")
                    if bad
                    else await _look(patient, one)
                )
    return [one for one in found.values() if one.name in names or one.state == "bad"]


async def _look(patient: Patient, name: str) -> Finding:
    try:
        state, text = await CHECKS[name](patient)
    except ResearchCopilotError as error:
        return Finding(name, "bad", str(error))
    return Finding(name, state, text)


def place(url: str) -> str:
    """Host, port and path of a URL: what may be shown of it."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def _print(findings: Sequence[Finding], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(one) for one in findings], ensure_ascii=False, indent=2))
        return
    for one in findings:
        print(f"{one.state:<8} {one.name:<9} {one.text}")
