"""Which version of which part answers: seen on a dashboard, and in a roll-out."""

import platform

from prometheus_client import Gauge

_BUILD = Gauge(
    "researchcopilot_build_info", "Always 1; what runs here", ["part", "version", "python"]
)


def tell(part: str, version: str) -> None:
    _BUILD.labels(part, version, platform.python_version()).set(1)
