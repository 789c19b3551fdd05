"""Duties: when each last succeeded, and how often it failed. Upkeep that goes on inside a process,
not runs: nobody sees one that has stopped except here.

A duty that several processes have is looked at by `max`: one that still succeeds is enough.
"""

from prometheus_client import Counter, Gauge

LAST_SUCCESS = Gauge(
    "researchcopilot_duty_last_success_timestamp_seconds", "When a duty last succeeded", ["duty"]
)
FAILED = Counter("researchcopilot_duty_failures_total", "Rounds of a duty that failed", ["duty"])


def begins(name: str) -> None:
    """It has not failed yet: a series that is born with its first failure hides that one."""
    FAILED.labels(name)


def succeeded(name: str) -> None:
    LAST_SUCCESS.labels(name).set_to_current_time()


def failed(name: str) -> None:
    FAILED.labels(name).inc()
