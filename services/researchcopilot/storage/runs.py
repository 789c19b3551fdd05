"""Reading runs and conversations. Everything is by workspace: a foreign id is as good as none.

Only reads: what changes a run is a move, and those live elsewhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from researchcopilot.core.errors import Unavailable
from researchcopilot.core.models import IdempotencyKey, Message, Run
from researchcopilot.core.states import Status
from researchcopilot.runtime.batch import Group, Limits
from researchcopilot.storage.db import Database
from researchcopilot.storage.sql import load

_SQL = load("runs")
# A page of messages stops before it has so many bytes of payload (but has at least one).
PAGE_BYTES = 4_000_000
# Runs read in one query: a result can have a megabyte.
MOST_READ = 64


@dataclass(frozen=True, slots=True)
class RunFilter:
    """What a list is restricted to; None means no restriction. Times are exclusive."""

    status: str | None = None
    agent: str | None = None
    queue: str | None = None
    session_id: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None


def _run(row: Mapping[str, Any]) -> Run:
    return Run(**{**row, "status": Status(row["status"])})


async def get_run(db: Database, workspace_id: int, run_id: str) -> Run | None:
    row = await db.one(_SQL["get"], {"workspace_id": workspace_id, "run_id": run_id})
    return _run(row) if row else None


class RunReader:
    """`get_run` for many callers at once: polling is most of what an api does, so reads that come
    together are one query. Two lanes: a slow group does not hold up the next."""

    def __init__(self, db: Database, *, max_waiting: int = 10_000) -> None:
        self._db = db
        self._group: Group[tuple[int, str], Run | None] = Group(
            self._send,
            # A Postgres that is away fails the whole group: halving it would only ask more often.
            again=lambda error: isinstance(error, Unavailable),
            limits=Limits(max_rows=MOST_READ, max_waiting=max_waiting, patience_s=0.2),
            lanes=2,
            name="read",
        )

    async def __call__(self, workspace_id: int, run_id: str) -> Run | None:
        """The run, None if this workspace has none of that id. Raises Busy and Unavailable."""
        return await self._group((workspace_id, run_id))

    async def close(self) -> None:
        await self._group.close()

    async def _send(self, wanted: Sequence[tuple[int, str]]) -> list[Run | None]:
        workspace_ids, run_ids = zip(*wanted, strict=True)
        rows = await self._db.dicts(
            _SQL["get_each"], {"workspace_ids": list(workspace_ids), "run_ids": list(run_ids)}
        )
        found: list[Run | None] = [None] * len(wanted)
        for row in rows:
            place = row.pop("place")
            found[place - 1] = _run(row)
        return found


async def get_runs(db: Database, workspace_id: int, run_ids: Sequence[str]) -> list[Run]:
    """Those that exist, in the order asked for, without input and result."""
    rows = await db.dicts(
        _SQL["get_many"], {"workspace_id": workspace_id, "run_ids": list(run_ids)}
    )
    return [_run(row) for row in rows]


async def list_runs(
    db: Database,
    workspace_id: int,
    restriction: RunFilter,
    *,
    before: tuple[datetime, str] | None = None,
    limit: int,
) -> list[Run]:
    """Newest first, without input and result (they can be large). `before`: created_at, run_id."""
    created_at, run_id = before or (None, None)
    return [
        _run(row)
        for row in await db.dicts(
            _SQL["list"],
            {
                "workspace_id": workspace_id,
                **asdict(restriction),
                "at": created_at,
                "run_id": run_id,
                "limit": limit,
            },
        )
    ]


async def statuses(db: Database, run_ids: Sequence[str]) -> dict[str, Status]:
    """The status of each id that exists, in every workspace: for watching, not for showing."""
    rows = await db.rows(_SQL["statuses"], {"run_ids": list(run_ids)})
    return {run_id: Status(status) for run_id, status in rows}


async def session_exists(db: Database, workspace_id: int, session_id: str) -> bool:
    row = await db.one(
        _SQL["session_exists"], {"workspace_id": workspace_id, "session_id": session_id}
    )
    return row is not None


async def messages(
    db: Database, workspace_id: int, session_id: str, *, after: int = 0, limit: int
) -> list[Message]:
    """A session's conversation after a message_id, in order; fewer than `limit` if large."""
    rows = await db.dicts(
        _SQL["messages"],
        {
            "workspace_id": workspace_id,
            "session_id": session_id,
            "after": after,
            "limit": limit,
            "bytes": PAGE_BYTES,
        },
    )
    return [Message(**row) for row in rows]


async def has_messages_after(
    db: Database, workspace_id: int, session_id: str, message_id: int
) -> bool:
    row = await db.one(
        _SQL["has_messages_after"],
        {"workspace_id": workspace_id, "session_id": session_id, "after": message_id},
    )
    return row is not None


async def accepted_before(db: Database, key: IdempotencyKey) -> tuple[str, ...] | None:
    """The ids of the runs that this very request (key and body) made earlier, or None."""
    row = await db.one(_SQL["accepted_before"], asdict(key))
    return tuple(row["run_ids"]) if row else None
