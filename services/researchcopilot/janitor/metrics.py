"""What the janitor measures."""

from prometheus_client import Counter, Gauge

LAST_SUCCESS = Gauge(
    "researchcopilot_duty_last_success_timestamp_seconds", "When a duty last succeeded", ["duty"]
)
FAILED = Counter("researchcopilot_duty_failures_total", "Rounds of a duty that failed", ["duty"])
RECLAIMED = Counter(
    "researchcopilot_reclaims_total", "Runs taken back from dead workers, by new status", ["status"]
)
EXPIRED = Counter("researchcopilot_runs_expired_total", "Runs that failed at their deadline")
MOVED = Counter(
    "researchcopilot_dead_entries_total", "Entries of dead workers, by verdict", ["verdict"]
)
LOST_PUSHES = Counter(
    "researchcopilot_lost_pushes_total", "Queued runs that stood in no list", ["queue"]
)
REBUILDS = Counter("researchcopilot_redis_rebuilds_total", "Times Redis was rebuilt from Postgres")
PRUNED = Counter("researchcopilot_pruned_rows_total", "Old rows that were removed", ["kind"])
