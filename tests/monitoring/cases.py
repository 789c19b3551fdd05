"""For each alert a story in which it fires and one in which it keeps silent, for promtool.

A story is series → values in promtool's notation, a minute apart; the alert is looked at after
`at` minutes. Firing stories name the labels that the alert must carry.
"""

from dataclasses import dataclass, field

P = "researchcopilot_"
HERE = 'namespace="n",release="r"'
Story = dict[str, str]


@dataclass(frozen=True, slots=True)
class Case:
    firing: Story
    silent: Story
    labels: dict[str, str] = field(default_factory=dict)
    at: int = 60
    also: Story = field(default_factory=dict)  # another story in which it fires
    where: dict[str, str] = field(default_factory=lambda: {"namespace": "n", "release": "r"})


def s(name: str, *labels: str) -> str:
    return f"{P}{name}{{{','.join((HERE, *labels))}}}"


Q = 'queue="runs"'
ENDED = [s("runs_finished_total", 'agent="a"', f'outcome="{o}"') for o in ("succeeded", "failed")]
RETRY = s("runs_finished_total", 'agent="a"', 'outcome="retry"')
LATE = [s("delay_lateness_seconds_bucket", f'le="{le}"') for le in ("1", "30", "+Inf")]
TICKS = [s("tick_lateness_seconds_bucket", f'le="{le}"') for le in ("1", "300", "+Inf")]
OK = [s("api_requests_total", 'status="202"'), s("api_requests_total", 'status="503"')]
MEMORY = s("redis_memory_bytes"), s("redis_memory_limit_bytes")
POOL = (
    s("database_waiting_requests", 'part="api"'),
    s("database_connections", 'part="api"', 'state="idle"'),
)
LOSSES = s("lock_losses_total", 'lock="scheduler"')
REFUSED = [s("redis_refusals_total", f'why="{why}"') for why in ("oom", "noperm")]
RECOVERY = [
    s("recovery_seconds_bucket", 'reason="silent"', f'le="{le}"') for le in ("20", "120", "+Inf")
]
KEDA = [
    f'keda_scaler_detail_errors_total{{namespace="n",scaledObject="{name}"}}'
    for name in ("x-researchcopilot-worker-default", "somebody-else-s")
]
NEXT_DUE = s("queue_next_due_seconds", Q)
SCHEDULER = s("build_info", 'part="scheduler"')
WORKER = s("build_info", 'part="worker"')
LOAD = s("queue_load", Q)
JOB = [
    f'kube_job_status_{e}{{namespace="n",job_name="x-migrate-0123abcd"}}'
    for e in ("failed", "succeeded")
]

CASES: dict[str, Case] = {
    "QueueOldestAgeHigh": Case(
        {s("queue_oldest_waiting_seconds", Q): "0+60x90"},
        {s("queue_oldest_waiting_seconds", Q): "0x30 600x3 0x60"},
        {"queue": "runs"},
    ),
    "QueueGrowing": Case(
        {s("queue_waiting", Q): "200+10x120"}, {s("queue_waiting", Q): "2000-10x120"},
        {"queue": "runs"}, at=90,
    ),
    "NoWorkers": Case(
        {s("queue_waiting", Q): "1x90", s("queue_workers", Q): "0x90"},
        {s("queue_waiting", Q): "1x90", s("queue_workers", Q): "1x90"},
        {"queue": "runs"},
    ),
    "WorkersSaturated": Case(
        {LOAD: "50x90", s("queue_slots", Q): "8x90"},
        {LOAD: "15x90", s("queue_slots", Q): "8x90"},
        {"queue": "runs"},
    ),
    "RunFailureRatioHigh": Case(
        dict(zip(ENDED, ("0+8x90", "0+2x90"), strict=True)),
        dict(zip(ENDED, ("0+99x90", "0+1x90"), strict=True)),
    ),
    "RetryLoop": Case(
        {ENDED[0]: "0+1x90", RETRY: "0+5x90"}, {ENDED[0]: "0+5x90", RETRY: "0+5x90"}, {"agent": "a"}
    ),
    "DeadLettersGrowing": Case(
        {s("dead_letters"): "0+1x120"}, {s("dead_letters"): "500x120"}, at=100
    ),
    "RunsWithoutAgent": Case(
        {s("runs_without_agent", 'agent="x"'): "3x90"},
        {s("runs_without_agent", 'agent="x"'): "0x50 3x5 0x60"},
        {"agent": "x"},
    ),
    "RecoveryStorm": Case(
        {s("reclaims_total", 'status="queued"'): "0+10x90"},
        {s("reclaims_total", 'status="queued"'): "0+1x90"},
    ),
    "RecoverySlow": Case(
        dict(zip(RECOVERY, ("0x90", "0+9x90", "0+9x90"), strict=True)),
        dict(zip(RECOVERY, ("0+9x90", "0+9x90", "0+9x90"), strict=True)),
    ),
    "LeasesLost": Case(
        {s("renewals_total", 'verdict="lost"'): "0+30x90"},
        {
            s("renewals_total", 'verdict="lost"'): "0+1x90",
            s("renewals_total", 'verdict="ok"'): "0+900x90",
        },
    ),
    "PushesLost": Case(
        {s("lost_pushes_total", Q): "0+10x90"}, {s("lost_pushes_total", Q): "0+1x90"}
    ),
    "ParkedForgotten": Case(
        {s("parked_forgotten_total"): "0x30 1x60"}, {s("parked_forgotten_total"): "0x90"}
    ),
    "ScheduleHalted": Case(
        {s("schedules_halted_total"): "0x30 1x60"}, {s("schedules_halted_total"): "0x90"}
    ),
    "OperatorWatchStale": Case(
        {s("operator_watch_age_seconds", 'kind="pods"'): "0+60x90"},
        {s("operator_watch_age_seconds", 'kind="pods"'): "55x40 200x3 10x60"},
        {"kind": "pods"},
    ),
    "RedisRebuilt": Case(
        {s("redis_rebuilds_total"): "0x20 1x10 2x10 3x50"}, {s("redis_rebuilds_total"): "0 1x90"}
    ),
    "SchedulerAbsent": Case({LOAD: "0x90"}, {LOAD: "0x90", SCHEDULER: "1x90"}),
    "DelayLate": Case(
        dict(zip(LATE, ("0x90", "0+9x90", "0+9x90"), strict=True)),
        {**dict(zip(LATE, ("0+9x90", "0+9x90", "0+9x90"), strict=True)), NEXT_DUE: "-1x90"},
        also={NEXT_DUE: "-40-60x90"},
    ),
    "TwoLeaders": Case({LOSSES: "0+1x90"}, {LOSSES: "0x30 1x30 2x30"}, {"lock": "scheduler"}),
    "ScheduleLate": Case(
        dict(zip(TICKS, ("0x90", "0+9x90", "0+9x90"), strict=True)),
        dict(zip(TICKS, ("0+9x90", "0+9x90", "0+9x90"), strict=True)),
    ),
    "DutyStale": Case(
        {s("duty_last_success_timestamp_seconds", 'duty="leases"'): "0x90"},
        {
            s("duty_last_success_timestamp_seconds", 'duty="leases"'): "0+60x90",
            s("duty_last_success_timestamp_seconds", 'duty="workers"'): "0x90",
            s("duty_last_success_timestamp_seconds", 'duty="expire_memories"'): "0x90",
        },
        {"duty": "leases"},
    ),
    "JanitorAbsent": Case({WORKER: "1x90"}, {WORKER: "1x90", LOAD: "0x90"}),
    "RedisNearMaxmemory": Case(
        dict(zip(MEMORY, ("90x90", "100x90"), strict=True)),
        dict(zip(MEMORY, ("90x90", "0x90"), strict=True)),
    ),
    "RedisRejectedWrites": Case(
        {REFUSED[0]: "0+20x90"}, {REFUSED[0]: "0x10 3x80", REFUSED[1]: "0+20x90"}, {"why": "oom"}
    ),
    "DatabasePoolExhausted": Case(
        dict(zip(POOL, ("4x90", "0x90"), strict=True)),
        dict(zip(POOL, ("4x90", "1x90"), strict=True)),
        {"part": "api"},
    ),
    "ApiErrors": Case(
        dict(zip(OK, ("0+90x90", "0+10x90"), strict=True)),
        dict(zip(OK, ("0+900x90", "0+1x90"), strict=True)),
    ),
    "MetricsAbsent": Case({"up": "1x90"}, {WORKER: "1x90"}, where={}),
    "MigrationFailed": Case(
        dict(zip(JOB, ("1x90", "0x90"), strict=True)),
        dict(zip(JOB, ("1x90", "1x90"), strict=True)),
        {"job_name": "x-migrate-0123abcd"},
        where={"namespace": "n"},
    ),
    "KedaScalerErrors": Case(
        {KEDA[0]: "0+6x90"},
        {KEDA[0]: "0+0x30 1x60", KEDA[1]: "0+6x90"},
        {"scaledObject": "x-researchcopilot-worker-default"},
        where={"namespace": "n"},
    ),
}  # fmt: skip
