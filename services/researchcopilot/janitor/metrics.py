"""What the janitor measures."""

from prometheus_client import Counter, Gauge

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
LOST_PUSHES = Counter(
    "researchcopilot_lost_pushes_total", "Queued runs that stood in no list", ["queue"]
)
REBUILDS = Counter("researchcopilot_redis_rebuilds_total", "Times Redis was rebuilt from Postgres")
PRUNED = Counter("researchcopilot_pruned_rows_total", "Old rows that were removed", ["kind"])
