"""What the janitor measures."""

from prometheus_client import Counter, Gauge, Histogram

RECLAIMED = Counter(
    "researchcopilot_reclaims_total",
    "Runs taken back, by what became of their worker (left, silent, forgotten) and new status",
    ["reason", "status"],
)
RECOVERED = Histogram(
    "researchcopilot_recovery_seconds",
    "From the last sign of life of a run's worker (left: its goodbye; forgotten: the end of the "
    "lease) to the commit that took the run back",
    ["reason"],
    buckets=(0.25, 0.5, 1, 2, 3, 5, 10, 15, 20, 30, 60, 120, 300, 600, 1800, 3600),
)
for _reason in ("left", "silent", "forgotten"):  # from 0: one born at 1 hides the first
    RECOVERED.labels(_reason)
    for _status in ("queued", "failed", "cancelled"):
        RECLAIMED.labels(_reason, _status)
RETURNING = Gauge(
    "researchcopilot_reclaimed_waiting", "Runs taken back that are on their way to the head"
)
EXPIRED = Counter(
    "researchcopilot_runs_expired_total",
    "Runs that failed at their deadline: never_started, deadline",
    ["reason"],
)
FORGOTTEN = Counter(
    "researchcopilot_parked_forgotten_total",
    "Parked runs that nobody would have freed; it must stay 0",
)
NO_AGENT = Gauge(
    "researchcopilot_runs_without_agent",
    "Runs that wait because a worker without their agent took them",
    ["agent"],
)
MOVED = Counter(
    "researchcopilot_dead_entries_total", "Entries of dead workers, by verdict", ["verdict"]
)
LOST_PUSHES = Counter(
    "researchcopilot_lost_pushes_total", "Queued runs that stood in no list", ["queue"]
)
REBUILDS = Counter("researchcopilot_redis_rebuilds_total", "Times Redis was rebuilt from Postgres")
PRUNED = Counter("researchcopilot_pruned_rows_total", "Old rows that were removed", ["kind"])
