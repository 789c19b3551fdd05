"""Renewal from a thread: a blocking connection of its own, outside the event loop.

An agent that blocks the loop must not lose its lease to another worker while it still works; that
is why this is the one place with a synchronous connection.
"""

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.types.string import TextLoader

from researchcopilot.core.settings import DatabaseSettings
from researchcopilot.storage.db import connection_options, translate
from researchcopilot.storage.silence import impatient_thread
from researchcopilot.storage.sql import load

_MOVES = load("moves")
_WORKERS = load("workers")


class Renewer:
    """Renews leases and the worker's own row. Not thread-safe: it belongs to one thread.

    `timeout_s`: the lease. Who is not answered for a third of it has time for another connection.
    """

    def __init__(self, settings: DatabaseSettings, timeout_s: float) -> None:
        options = connection_options(settings)
        milliseconds = int(timeout_s * 1000)
        options["options"] += f" -c statement_timeout={milliseconds} -c lock_timeout={milliseconds}"
        options["tcp_user_timeout"] = milliseconds
        self._options = options
        self._url = settings.url
        self._class = impatient_thread(max(1.0, timeout_s / 3))
        self._connection: psycopg.Connection[Any] | None = None

    def renew(
        self, worker_id: str, pairs: Sequence[tuple[str, int]], lease_s: float
    ) -> dict[tuple[str, int], str]:
        """A verdict for each (run_id, claim_no): kept, cancel, busy or lost, see renew_2. Raises
        Unavailable."""
        rows = self._fetch(
            _MOVES["renew"],
            {
                "worker_id": worker_id,
                "run_ids": [run_id for run_id, _ in pairs],
                "claim_nos": [claim_no for _, claim_no in pairs],
                "lease_s": lease_s,
            },
        )
        return {(run_id, claim_no): verdict for run_id, claim_no, verdict in rows}

    def beat(self, worker_id: str) -> bool:
        """Say that this worker lives. False if its row is gone: it has to register again."""
        return bool(self._fetch(_WORKERS["beat"], {"worker_id": worker_id}))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _fetch(self, query: bytes, params: dict[str, Any]) -> list[tuple[Any, ...]]:
        try:
            if self._connection is None:
                self._connection = self._class.connect(self._url, **self._options)
                self._connection.adapters.register_loader("uuid", TextLoader)
            return self._connection.execute(query, params).fetchall()
        except Exception as error:
            self.close()
            other = translate(error)
            if other is error:
                raise
            raise other from error
