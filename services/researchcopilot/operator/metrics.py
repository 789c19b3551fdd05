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
