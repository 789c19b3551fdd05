"""What the operator measures."""

from prometheus_client import Counter, Gauge

WATCH_AGE = Gauge(
    "researchcopilot_operator_watch_age_seconds",
    "Since the API server last answered a list or watch of this kind",
    ["kind"],
)
RESTARTS = Counter(
    "researchcopilot_operator_restarts_total", "Times that watching ended and was started again"
)
SIGNALS = Counter(
    "researchcopilot_operator_signals_total",
    "What Pods said of dead workers: pod_deleted, evicted, oom_killed, container_died, …",
    ["reason"],
)
DROPPED = Counter(
    "researchcopilot_operator_signals_dropped_total", "Signals that found the line full"
)
FAILED = Counter(
    "researchcopilot_operator_failures_total",
    "What did not succeed beside the recovery itself: signals, events, silent, deletion_cost",
    ["what"],
)
for _what in ("signals", "events", "silent", "deletion_cost"):  # from 0: see the first of each
    FAILED.labels(_what)
COST_WRITES = Counter(
    "researchcopilot_operator_cost_writes_total", "Deletion costs that were written to Pods"
)
OBJECTS = Gauge(
    "researchcopilot_operator_objects", "Objects of the cluster that are known, by kind", ["kind"]
)
STATUS_WRITES = Counter(
    "researchcopilot_operator_status_writes_total",
    "Writes of an object's status: written, failed",
    ["kind", "outcome"],
)
RESYNCS = Counter(
    "researchcopilot_operator_resyncs_total", "Comparisons of all objects and rows", ["kind"]
)
