"""Metrics and the access log of requests: one count, one duration, one line each.

Labelled by route template, never by path, so that ids make no series. What went well is logged at
debug: at thousands of requests a second a line for each is most of the work.
"""

import logging
from functools import cache

from prometheus_client import Counter, Histogram

log = logging.getLogger("researchcopilot.access")

_REQUESTS = Counter(
    "researchcopilot_api_requests",
    "Requests by route template and status",
    ("method", "route", "status"),
)
_SECONDS = Histogram(
    "researchcopilot_api_request_seconds",
    "Seconds from the head of a request to the end of its answer (?wait included)",
    ("method", "route"),
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
# labels() looks a child up under a lock at each call; these are few and stay.
_requests = cache(_REQUESTS.labels)
_seconds = cache(_SECONDS.labels)

HUNG_UP = 499  # nobody was there to be answered


def record(
    method: str, route: str, path: str, status: int, seconds: float, request_id: str
) -> None:
    _requests(method, route, status).inc()
    _seconds(method, route).observe(seconds)
    level = logging.DEBUG if status < 400 else logging.INFO if status < 500 else logging.WARNING
    if log.isEnabledFor(level):
        log.log(
            level,
            "%s %s %d",
            method,
            path[:200],
            status,
            extra={"ms": round(seconds * 1000, 2), "request_id": request_id, "route": route},
        )
