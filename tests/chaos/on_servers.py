"""Faults of the two servers: wiped, restarted, killed, refusing. Each refusal is one that an
operator knows: a replica, a master that has lost its replicas, a full memory, a full disk.

That it refused is read from the server's own count of errors, so it was our parts that were
refused. Whatever was set is set back, also when the test is broken off.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from tests.chaos.fault import Fault, Strike
from tests.chaos.stage import Stage

MARK = "chaos:mark"
NOWHERE = ("127.0.0.1", 1)


# Redis forgets


def _flush(strike: Strike) -> int:
    with strike.stage.redis() as client:
        client.set(MARK, 1)
        strike.struck()
        client.flushall()
        return int(not client.exists(MARK))


def _redis_empty(strike: Strike) -> int:
    valkey = strike.stage.stack.valkey
    with strike.stage.redis() as client:
        client.set(MARK, 1)
    strike.struck()
    valkey.stop()
    valkey.clear()
    valkey.start()
    with strike.stage.redis() as client:
        return int(not client.exists(MARK))


def _pushes_lost(strike: Strike) -> int:
    """Redis answers nobody while runs are accepted, and both apis die before it does again: their
    pushes are lost, and Redis does not look as if anything had happened."""
    stage, apis = strike.stage, strike.names[1:]
    stage.stack.valkey.child.send(signal.SIGSTOP)
    try:
        time.sleep(0.8)
        killed = sum(stage.kill(api) for api in apis)
    finally:
        stage.stack.valkey.child.send(signal.SIGCONT)
    strike.struck()
    for api in apis:
        stage.start(api)
    return killed


# Redis refuses


def _refusing(strike: Strike, word: str, seconds: float) -> int:
    """For so long, or until somebody was refused with this word, if that takes longer."""
    with strike.stage.redis() as client:
        before = _refused(client, word)
        strike.struck()
        end = time.monotonic() + seconds
        seen = strike.grown(lambda: _refused(client, word), before)
        time.sleep(max(0.0, end - time.monotonic()))
        return max(seen, _refused(client, word) - before)


def _refused(client: "redis.Redis", word: str) -> int:
    found: Any = client.info("errorstats")
    return int(found.get(f"errorstat_{word}", {}).get("count", 0))


def _replica(strike: Strike) -> int:
    """Made the replica of a master that does not answer, and promoted again: a failover that went
    wrong, and was put right."""
    with strike.stage.redis() as client:
        client.replicaof(*NOWHERE)
        try:
            return _refusing(strike, "READONLY", strike.leases(0.5, 2.5))
        finally:
            client.replicaof("NO", "ONE")


def _without_replicas(strike: Strike) -> int:
    """A master that wants a replica and has none; it stays who it is, so nothing is rebuilt."""
    with _set(strike.stage, "min-replicas-to-write", "1", "0"):
        return _refusing(strike, "NOREPLICAS", strike.leases(0.5, 2.5))


def _memory_full(strike: Strike) -> int:
    """`maxmemory` is reached: what makes nothing larger still passes."""
    with _set(strike.stage, "maxmemory", "1", "0"):
        return _refusing(strike, "OOM", strike.leases(0.5, 2.5))


def _disk_full(strike: Strike) -> int:
    """A snapshot cannot be written; from then on Redis refuses every write (MISCONF)."""
    folder = strike.stage.stack.valkey.data
    mode = folder.stat().st_mode
    folder.chmod(0o500)
    try:
        with _set(strike.stage, "save", "1 1", ""):
            return _refusing(strike, "MISCONF", strike.leases(0.5, 2.5))
    finally:
        folder.chmod(mode)


@contextmanager
def _set(stage: Stage, name: str, value: str, before: str) -> Iterator[None]:
    with stage.redis() as client:
        client.config_set(name, value)
        try:
            yield
        finally:
            client.config_set(name, before)


# Either, and Postgres


def _killed(strike: Strike) -> int:
    """It comes back with what is on its disk. Redis' file may be a second old."""
    server = strike.stage.server(strike.name)
    strike.struck()
    server.kill()
    killed = server.child.exit_code == -signal.SIGKILL
    time.sleep(strike.rand.uniform(0, 0.5))
    server.start()
    return int(killed)


def _restarted(strike: Strike) -> int:
    strike.struck()
    return strike.stage.restart(strike.name)


def _postgres_immediate(strike: Strike) -> int:
    """`pg_ctl stop -m immediate`: no checkpoint, sessions are quit in the middle; it recovers."""
    postgres = strike.stage.stack.postgres
    begun = postgres.log.stat().st_size
    strike.struck()
    postgres.child.stop(((signal.SIGQUIT, 10.0), (signal.SIGKILL, 5.0)))
    time.sleep(strike.rand.uniform(0, 0.5))
    postgres.start()
    told = postgres.log.read_bytes()[begun:]
    return int(b"received immediate shutdown" in told and b"automatic recovery" in told)


def _redis(name: str, seen: str, acts: Any) -> Fault:
    return Fault(f"Redis {name}", ("Valkey",), "waiting", seen, acts)


def _postgres(name: str, seen: str, acts: Any) -> Fault:
    return Fault(f"Postgres {name}", ("Postgres",), "all", seen, acts)


PUSHES_LOST = Fault("pushes lost: Redis hangs, apis die", ("Valkey", "api", "api"),
                    "just accepted", "apis killed", _pushes_lost)  # fmt: skip
FORGETS = (
    _redis("FLUSHALL", "wiped", _flush),
    _redis("restarted empty", "wiped", _redis_empty),
    _redis("kill -9, an older file", "killed", _killed),
    PUSHES_LOST,
)
REFUSES = (
    _redis("read-only: a replica", "writes refused", _replica),
    _redis("read-only: no replicas", "writes refused", _without_replicas),
    _redis("memory full", "writes refused", _memory_full),
    _redis("disk full", "writes refused", _disk_full),
)
POSTGRES = (
    _postgres("restarted", "restarted", _restarted),
    _postgres("kill -9", "killed", _killed),
    _postgres("stopped at once", "recovered", _postgres_immediate),
)
FAULTS = (*FORGETS, *REFUSES, *POSTGRES)
