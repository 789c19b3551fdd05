"""What a process holds of Postgres: connections, and who waits for one. Read when scraped."""

from collections.abc import Iterator

from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from researchcopilot.storage.db import Database


class _Pool(Collector):
    """One for the process, registered once; `db` is the pool that is open now."""

    db: Database | None = None

    def collect(self) -> Iterator[GaugeMetricFamily]:
        stats = self.db.pool.get_stats() if self.db else {}
        size, idle = stats.get("pool_size", 0), stats.get("pool_available", 0)
        connections = GaugeMetricFamily(
            "researchcopilot_database_connections", "Of this process's pool", labels=["state"]
        )
        connections.add_metric(["busy"], max(0, size - idle))
        connections.add_metric(["idle"], idle)
        yield connections
        yield GaugeMetricFamily(
            "researchcopilot_database_connections_limit",
            "The pool may grow to",
            value=stats.get("pool_max", 0),
        )
        yield GaugeMetricFamily(
            "researchcopilot_database_waiting_requests",
            "Who waits for a connection",
            value=stats.get("requests_waiting", 0),
        )


_POOL = _Pool()


def watch_pool(db: Database) -> None:
    """Tell of this pool from now on."""
    if _POOL.db is None:
        REGISTRY.register(_POOL)
    _POOL.db = db
