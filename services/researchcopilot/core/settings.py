"""Settings: read once from the environment, in frozen groups, with one prefix (`RC_`).

An unknown RC_ variable or a bad value stops the process and names the variable, the value and
what would be right: a typo that is ignored is found at night. Nothing else reads os.environ.
"""

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from researchcopilot.core.errors import ConfigError
from researchcopilot.core.variables import (
    PREFIX,
    choice,
    number,
    parse_queues,
    plain_name,
    seconds,
    setting,
    switch,
    text,
    url,
    whole,
)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class DatabaseSettings:
    url: str = setting(
        "DATABASE_URL",
        "postgresql://postgres@127.0.0.1:5432/researchcopilot",
        url("postgresql", "postgres"),
        "Postgres 14 or newer; everything that matters is there",
    )
    pool: int = setting("DATABASE_POOL", 8, whole(2, 200), "connections of a process at most")
    statement_timeout_s: float = setting(
        "DATABASE_STATEMENT_TIMEOUT", 30.0, seconds(1, 600), "a statement may take so long"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class RedisSettings:
    url: str = setting(
        "REDIS_URL",
        "redis://127.0.0.1:6379/0",
        url("redis", "rediss", "unix"),
        "Redis 6.2 / Valkey 7.2 or newer; a hint that can be rebuilt",
    )
    prefix: str = setting("REDIS_PREFIX", "", text, "put before every key, e.g. {rc}:")
    done_kept: int = setting(
        "REDIS_DONE_KEPT", 0, whole(0, 100_000), "ended runs kept in queue:<queue>:done, for demos"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ApiSettings:
    host: str = setting("API_HOST", "127.0.0.1", text, "address that the api listens on; *: all")
    port: int = setting("API_PORT", 8080, whole(0, 65535), "port of the api; 0 takes a free one")
    max_body_bytes: int = setting(
        "API_MAX_BODY_BYTES", 4_194_304, whole(1024, 268_435_456), "a request body at most"
    )
    max_input_bytes: int = setting(
        "API_MAX_INPUT_BYTES", 262_144, whole(64, 16_777_216), "a run's input as JSON at most"
    )
    max_document_bytes: int = setting(
        "API_MAX_DOCUMENT_BYTES", 16_777_216, whole(1024, 268_435_456), "a document at most"
    )
    max_waiting: int = setting(
        "API_MAX_WAITING", 10_000, whole(1, 1_000_000), "submits that wait for a commit, then 503"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerSettings:
    queues: dict[str, int] = setting(
        "WORKER_QUEUES",
        {"runs": 8, "system": 2},
        parse_queues,
        "queues, with slots for each",
    )
    drain_s: float = setting(
        "DRAIN_SECONDS", 30.0, seconds(0, 86_400), "after SIGTERM runs may go on for so long"
    )
    run_timeout_s: float = setting(
        "RUN_TIMEOUT_SECONDS", 3600.0, seconds(0.1, 604_800), "a run's time-out if it names none"
    )
    blocked_s: float = setting(
        "BLOCKED_SECONDS",
        60.0,
        seconds(0.5, 3600),
        "a loop blocked so long ends the worker",
    )
    max_result_bytes: int = setting(
        "MAX_RESULT_BYTES", 1_048_576, whole(64, 67_108_864), "a run's result as JSON at most"
    )
    cache_dir: str = setting(
        "CACHE_DIR", "", text, "folder for index files; empty: a temporary one"
    )
    retry_base_s: float = setting(
        "RETRY_BASE_SECONDS", 2.0, seconds(0.001, 3600), "retry n waits up to base * 2^(n-1)"
    )
    retry_cap_s: float = setting(
        "RETRY_CAP_SECONDS", 600.0, seconds(0.001, 86_400), "a retry waits so long at most"
    )
    isolation: str = setting(
        "WORKER_ISOLATION",
        "none",
        choice("none", "process"),
        "process: each run in a process of its own; none: only runs whose workers died twice",
    )
    memory_limit_mb: int = setting(
        "WORKER_MEMORY_LIMIT_MB",
        0,
        whole(0, 1_048_576),
        "an isolated run may have so much memory; 0: no limit",
    )
    max_lost_threads: int = setting(
        "MAX_LOST_THREADS",
        8,
        whole(1, 10_000),
        "more threads that agents keep after their end: the worker drains and exits",
    )
    pod: str = setting("POD_NAME", "", text, "set by the chart from the Pod's name")
    pod_uid: str = setting("POD_UID", "", text, "set by the chart from the Pod's uid")
    pod_namespace: str = setting(
        "POD_NAMESPACE", "", text, "set by the chart from the Pod's namespace"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class RecoverySettings:
    lease_s: float = setting(
        "LEASE_SECONDS",
        15.0,
        seconds(0.03, 3600),
        "a claim lasts so long; renewed each third",
    )
    sweep_s: float = setting("SWEEP_SECONDS", 5.0, seconds(0.05, 600), "the janitor's beat")
    probe_s: float = setting(
        "PROBE_SECONDS", 10.0, seconds(0.05, 600), "how often lost pushes are looked for"
    )
    probe_slack_s: float = setting(
        "PROBE_SLACK_SECONDS", 5.0, seconds(0.05, 600), "a push may be late by so much"
    )
    spread_s: float = setting(
        "RECLAIM_SPREAD_SECONDS",
        3.0,
        seconds(0, 60),
        "many runs of a dead worker come back over so long",
    )
    max_losses: int = setting(
        "MAX_LOSSES", 3, whole(1, 100), "a run whose workers died so often fails as worker_lost"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class RetentionSettings:
    runs_days: float = setting(
        "RETENTION_DAYS", 30.0, number(0.001, 36_500, "days"), "ended runs are kept so long"
    )
    dead_days: float = setting(
        "RETENTION_DEAD_DAYS", 90.0, number(0.001, 36_500, "days"), "dead letters: so long"
    )
    keys_hours: float = setting(
        "IDEMPOTENCY_HOURS", 24.0, number(0.001, 8760, "hours"), "an Idempotency-Key holds so long"
    )
    sweep_s: float = setting(
        "RETENTION_SWEEP_SECONDS", 60.0, seconds(0.05, 86_400), "how often old rows are removed"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class JobSettings:
    digest_delay_s: float = setting(
        "DIGEST_DELAY_SECONDS", 300.0, seconds(0, 86_400), "a digest comes so long after its run"
    )
    memory_days: float = setting(
        "MEMORY_DAYS", 90.0, number(0.00001, 36_500, "days"), "a conclusion is remembered so long"
    )
    memory_sweep_s: float = setting(
        "MEMORY_SWEEP_SECONDS", 3600.0, seconds(0.05, 86_400), "how often old memories are removed"
    )
    stats_s: float = setting(
        "STATS_SECONDS", 60.0, seconds(0.05, 3600), "how often a worker writes what it finished"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class OperatorSettings:
    namespace: str = setting(
        "OPERATOR_NAMESPACE",
        "",
        text,
        "namespace that the workers and the operator's objects are in; empty: the operator's own",
    )
    cluster_wide: bool = setting(
        "OPERATOR_CLUSTER_WIDE",
        False,
        switch,
        "take ResearchRun and RunSchedule from all namespaces; needs a ClusterRole",
    )
    selector: str = setting(
        "OPERATOR_SELECTOR",
        "app.kubernetes.io/component=worker",
        text,
        "labels of the Pods that are workers of this release; the API server filters by them",
    )
    container: str = setting(
        "OPERATOR_CONTAINER", "worker", text, "the container of such a Pod that is the worker"
    )
    custom_resources: bool = setting(
        "OPERATOR_CUSTOM_RESOURCES",
        True,
        switch,
        "serve ResearchRun and RunSchedule; needs their CRDs and the rights to them",
    )
    deletion_cost: bool = setting(
        "OPERATOR_DELETION_COST",
        False,
        switch,
        "write pod-deletion-cost on worker Pods, so that a scale-in spares the busy ones",
    )
    deletion_cost_s: float = setting(
        "OPERATOR_DELETION_COST_SECONDS", 10.0, seconds(0.05, 3600), "how often it is looked at"
    )
    watch_limit_s: float = setting(
        "OPERATOR_WATCH_LIMIT_SECONDS",
        180.0,
        seconds(1, 3600),
        "/livez fails when the API server has not answered a watch for so long",
    )
    runs_per_namespace: int = setting(
        "OPERATOR_RUNS_PER_NAMESPACE",
        100,
        whole(0, 100_000),
        "ResearchRun objects of a namespace that may be unfinished at once",
    )
    workspace: str = setting(
        "OPERATOR_WORKSPACE",
        "default",
        plain_name,
        "workspace that runs and schedules of objects belong to; made if there is none",
    )
    cluster: str = setting(
        "OPERATOR_CLUSTER",
        "default",
        plain_name,
        "a name for this cluster; each its own, where operators of several share a database",
    )
    resync_s: float = setting(
        "OPERATOR_RESYNC_SECONDS",
        60.0,
        seconds(0.05, 3600),
        "how often objects and rows are compared as a whole",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class HealthSettings:
    host: str = setting(
        "HEALTH_HOST", "127.0.0.1", text, "address of /livez /readyz /metrics; *: all"
    )
    port: int = setting("HEALTH_PORT", 0, whole(0, 65535), "their port; 0 takes a free one")
    port_file: str = setting(
        "HEALTH_PORT_FILE", "", text, "write the ports in use to this file as JSON"
    )
    stale_s: float = setting(
        "LIVE_STALE_SECONDS", 60.0, seconds(1, 3600), "/livez fails without progress for so long"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class LogSettings:
    level: str = setting(
        "LOG_LEVEL", "info", choice("debug", "info", "warning", "error"), "what is logged"
    )
    format: str = setting(
        "LOG_FORMAT",
        "auto",
        choice("auto", "json", "text"),
        "auto: text on a terminal",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    database: DatabaseSettings
    redis: RedisSettings
    api: ApiSettings
    worker: WorkerSettings
    recovery: RecoverySettings
    retention: RetentionSettings
    jobs: JobSettings
    operator: OperatorSettings
    health: HealthSettings
    log: LogSettings


_GROUPS: dict[str, type] = {
    "database": DatabaseSettings,
    "redis": RedisSettings,
    "api": ApiSettings,
    "worker": WorkerSettings,
    "recovery": RecoverySettings,
    "retention": RetentionSettings,
    "jobs": JobSettings,
    "operator": OperatorSettings,
    "health": HealthSettings,
    "log": LogSettings,
}


def describe() -> list[tuple[str, str, str]]:
    """(variable, default, meaning) of every setting, in order."""
    rows = []
    for group in _GROUPS.values():
        for field in dataclasses.fields(group):
            default = (
                field.default
                if field.default is not dataclasses.MISSING
                else cast(Callable[[], Any], field.default_factory)()
            )
            if isinstance(default, bool):
                default = str(default).lower()
            if isinstance(default, dict):
                default = ",".join(f"{name}={slots}" for name, slots in default.items())
            rows.append((field.metadata["name"], str(default), field.metadata["doc"]))
    return rows


def load(environ: Mapping[str, str]) -> Settings:
    """Settings from an environment. Raises ConfigError for the first thing that is wrong."""
    known = {name for name, _, _ in describe()}
    for name in environ:
        if name.startswith(PREFIX) and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {close[0]}?" if close else " See `researchcopilot settings`."
            raise ConfigError(f"{name} is not a setting of this version.{hint}")
    return Settings(**{name: _group(group, environ) for name, group in _GROUPS.items()})


def _group(group: type[T], environ: Mapping[str, str]) -> T:
    values = {}
    for field in dataclasses.fields(group):  # type: ignore[arg-type]
        name = field.metadata["name"]
        if name in environ:
            try:
                values[field.name] = field.metadata["parse"](environ[name])
            except ValueError as error:
                raise ConfigError(
                    f"{name}={environ[name]!r} is not right: give {error}."
                ) from error
    return group(**values)
