"""Settings: read once from the environment, in frozen groups, with one prefix (`RC_`).

An unknown RC_ variable or a bad value stops the process and names the variable, the value and
what would be right: a typo that is ignored is found at night. Nothing else reads os.environ.
"""

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from researchcopilot.core.errors import ConfigError
from researchcopilot.core.variables import PREFIX, parse_queues
from researchcopilot.core.variables import choice as _choice
from researchcopilot.core.variables import name as _name
from researchcopilot.core.variables import number as _number
from researchcopilot.core.variables import seconds as _seconds
from researchcopilot.core.variables import setting as _setting
from researchcopilot.core.variables import switch as _switch
from researchcopilot.core.variables import text as _text
from researchcopilot.core.variables import url as _url
from researchcopilot.core.variables import whole as _whole

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class DatabaseSettings:
    url: str = _setting(
        "DATABASE_URL",
        "postgresql://postgres@127.0.0.1:5432/researchcopilot",
        _url("postgresql", "postgres"),
        "Postgres 14 or newer; everything that matters is there",
    )
    pool: int = _setting("DATABASE_POOL", 8, _whole(2, 200), "connections of a process at most")
    statement_timeout_s: float = _setting(
        "DATABASE_STATEMENT_TIMEOUT", 30.0, _seconds(1, 600), "a statement may take so long"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class RedisSettings:
    url: str = _setting(
        "REDIS_URL",
        "redis://127.0.0.1:6379/0",
        _url("redis", "rediss", "unix"),
        "Redis 6.2 / Valkey 7.2 or newer; a hint that can be rebuilt",
    )
    prefix: str = _setting("REDIS_PREFIX", "", _text, "put before every key, e.g. {rc}:")
    done_kept: int = _setting(
        "REDIS_DONE_KEPT", 0, _whole(0, 100_000), "ended runs kept in queue:<queue>:done, for demos"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ApiSettings:
    host: str = _setting("API_HOST", "127.0.0.1", _text, "address that the api listens on")
    port: int = _setting("API_PORT", 8080, _whole(0, 65535), "port of the api; 0 takes a free one")
    max_body_bytes: int = _setting(
        "API_MAX_BODY_BYTES", 4_194_304, _whole(1024, 268_435_456), "a request body at most"
    )
    max_input_bytes: int = _setting(
        "API_MAX_INPUT_BYTES", 262_144, _whole(64, 16_777_216), "a run's input as JSON at most"
    )
    max_document_bytes: int = _setting(
        "API_MAX_DOCUMENT_BYTES", 16_777_216, _whole(1024, 268_435_456), "a document at most"
    )
    max_waiting: int = _setting(
        "API_MAX_WAITING", 10_000, _whole(1, 1_000_000), "submits that wait for a commit, then 503"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerSettings:
    queues: dict[str, int] = _setting(
        "WORKER_QUEUES",
        {"runs": 8, "system": 2},
        parse_queues,
        "queues, with slots for each",
    )
    drain_s: float = _setting(
        "DRAIN_SECONDS", 30.0, _seconds(0, 86_400), "after SIGTERM runs may go on for so long"
    )
    run_timeout_s: float = _setting(
        "RUN_TIMEOUT_SECONDS", 3600.0, _seconds(0.1, 604_800), "a run's time-out if it names none"
    )
    blocked_s: float = _setting(
        "BLOCKED_SECONDS",
        60.0,
        _seconds(0.5, 3600),
        "a loop blocked so long ends the worker",
    )
    max_result_bytes: int = _setting(
        "MAX_RESULT_BYTES", 1_048_576, _whole(64, 67_108_864), "a run's result as JSON at most"
    )
    cache_dir: str = _setting(
        "CACHE_DIR", "", _text, "folder for index files; empty: a temporary one"
    )
    retry_base_s: float = _setting(
        "RETRY_BASE_SECONDS", 2.0, _seconds(0.001, 3600), "retry n waits up to base * 2^(n-1)"
    )
    retry_cap_s: float = _setting(
        "RETRY_CAP_SECONDS", 600.0, _seconds(0.001, 86_400), "a retry waits so long at most"
    )
    isolation: str = _setting(
        "WORKER_ISOLATION",
        "none",
        _choice("none", "process"),
        "process: each run in a process of its own; none: only runs whose workers died twice",
    )
    memory_limit_mb: int = _setting(
        "WORKER_MEMORY_LIMIT_MB",
        0,
        _whole(0, 1_048_576),
        "an isolated run may have so much memory; 0: no limit",
    )
    max_lost_threads: int = _setting(
        "MAX_LOST_THREADS",
        8,
        _whole(1, 10_000),
        "more threads that agents keep after their end: the worker drains and exits",
    )
    pod: str = _setting("POD_NAME", "", _text, "set by the chart from the Pod's name")
    pod_uid: str = _setting("POD_UID", "", _text, "set by the chart from the Pod's uid")
    pod_namespace: str = _setting(
        "POD_NAMESPACE", "", _text, "set by the chart from the Pod's namespace"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class RecoverySettings:
    lease_s: float = _setting(
        "LEASE_SECONDS",
        15.0,
        _seconds(0.03, 3600),
        "a claim lasts so long; renewed each third",
    )
    sweep_s: float = _setting("SWEEP_SECONDS", 5.0, _seconds(0.05, 600), "the janitor's beat")
    probe_s: float = _setting(
        "PROBE_SECONDS", 10.0, _seconds(0.05, 600), "how often lost pushes are looked for"
    )
    probe_slack_s: float = _setting(
        "PROBE_SLACK_SECONDS", 5.0, _seconds(0.05, 600), "a push may be late by so much"
    )
    spread_s: float = _setting(
        "RECLAIM_SPREAD_SECONDS",
        3.0,
        _seconds(0, 60),
        "many runs of a dead worker come back over so long",
    )
    max_losses: int = _setting(
        "MAX_LOSSES", 3, _whole(1, 100), "a run whose workers died so often fails as worker_lost"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class RetentionSettings:
    runs_days: float = _setting(
        "RETENTION_DAYS", 30.0, _number(0.001, 36_500, "days"), "ended runs are kept so long"
    )
    dead_days: float = _setting(
        "RETENTION_DEAD_DAYS", 90.0, _number(0.001, 36_500, "days"), "dead letters: so long"
    )
    keys_hours: float = _setting(
        "IDEMPOTENCY_HOURS", 24.0, _number(0.001, 8760, "hours"), "an Idempotency-Key holds so long"
    )
    sweep_s: float = _setting(
        "RETENTION_SWEEP_SECONDS", 60.0, _seconds(0.05, 86_400), "how often old rows are removed"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class JobSettings:
    digest_delay_s: float = _setting(
        "DIGEST_DELAY_SECONDS", 300.0, _seconds(0, 86_400), "a digest comes so long after its run"
    )
    memory_days: float = _setting(
        "MEMORY_DAYS", 90.0, _number(0.00001, 36_500, "days"), "a conclusion is remembered so long"
    )
    memory_sweep_s: float = _setting(
        "MEMORY_SWEEP_SECONDS", 3600.0, _seconds(0.05, 86_400), "how often old memories are removed"
    )
    stats_s: float = _setting(
        "STATS_SECONDS", 60.0, _seconds(0.05, 3600), "how often a worker writes what it finished"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class OperatorSettings:
    namespace: str = _setting(
        "OPERATOR_NAMESPACE",
        "",
        _text,
        "namespace that the workers and the operator's objects are in; empty: the operator's own",
    )
    cluster_wide: bool = _setting(
        "OPERATOR_CLUSTER_WIDE",
        False,
        _switch,
        "take ResearchRun and RunSchedule from all namespaces; needs a ClusterRole",
    )
    selector: str = _setting(
        "OPERATOR_SELECTOR",
        "app.kubernetes.io/component=worker",
        _text,
        "labels of the Pods that are workers of this release; the API server filters by them",
    )
    container: str = _setting(
        "OPERATOR_CONTAINER", "worker", _text, "the container of such a Pod that is the worker"
    )
    custom_resources: bool = _setting(
        "OPERATOR_CUSTOM_RESOURCES",
        True,
        _switch,
        "serve ResearchRun and RunSchedule; needs their CRDs and the rights to them",
    )
    deletion_cost: bool = _setting(
        "OPERATOR_DELETION_COST",
        False,
        _switch,
        "write pod-deletion-cost on worker Pods, so that a scale-in spares the busy ones",
    )
    deletion_cost_s: float = _setting(
        "OPERATOR_DELETION_COST_SECONDS", 10.0, _seconds(0.05, 3600), "how often it is looked at"
    )
    watch_limit_s: float = _setting(
        "OPERATOR_WATCH_LIMIT_SECONDS",
        180.0,
        _seconds(1, 3600),
        "/livez fails when the API server has not answered a watch for so long",
    )
    runs_per_namespace: int = _setting(
        "OPERATOR_RUNS_PER_NAMESPACE",
        100,
        _whole(0, 100_000),
        "ResearchRun objects of a namespace that may be unfinished at once",
    )
    workspace: str = _setting(
        "OPERATOR_WORKSPACE",
        "default",
        _name,
        "workspace that runs and schedules of objects belong to; made if there is none",
    )
    cluster: str = _setting(
        "OPERATOR_CLUSTER",
        "default",
        _name,
        "a name for this cluster; each its own, where operators of several share a database",
    )
    resync_s: float = _setting(
        "OPERATOR_RESYNC_SECONDS",
        60.0,
        _seconds(0.05, 3600),
        "how often objects and rows are compared as a whole",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class HealthSettings:
    host: str = _setting("HEALTH_HOST", "127.0.0.1", _text, "address of /livez /readyz /metrics")
    port: int = _setting("HEALTH_PORT", 0, _whole(0, 65535), "their port; 0 takes a free one")
    port_file: str = _setting(
        "HEALTH_PORT_FILE", "", _text, "write the ports in use to this file as JSON"
    )
    stale_s: float = _setting(
        "LIVE_STALE_SECONDS", 60.0, _seconds(1, 3600), "/livez fails without progress for so long"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class LogSettings:
    level: str = _setting(
        "LOG_LEVEL", "info", _choice("debug", "info", "warning", "error"), "what is logged"
    )
    format: str = _setting(
        "LOG_FORMAT",
        "auto",
        _choice("auto", "json", "text"),
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
