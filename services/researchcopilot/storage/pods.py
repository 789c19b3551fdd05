"""Which of the workers that are registered here run in which Pod, and what they hold.

Kubernetes speaks of Pods and containers, rows of worker processes; this is where one is held
against the other. Nothing here moves a run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from researchcopilot.storage.db import Database
from researchcopilot.storage.sql import load

_SQL = load("workers")


@dataclass(frozen=True, slots=True)
class Said:
    """What is said of a Pod: its processes are dead, or (`before`) those that started earlier than
    the container that runs now. Not `sure`: believed only of one that has missed a renewal."""

    pod_uid: str
    before: datetime | None
    sure: bool


@dataclass(frozen=True, slots=True)
class DeadProcess:
    """A worker, and which of those that were asked about says that it is dead."""

    worker_id: str
    place: int
    queues: tuple[str, ...]


async def dead_processes(
    db: Database, said: Sequence[Said], *, lease_s: float
) -> list[DeadProcess]:
    """The workers of these Pods that are dead, and may still hold something."""
    rows = await db.rows(
        _SQL["dead_in_pods"],
        {
            "pod_uids": [one.pod_uid for one in said],
            "befores": [one.before for one in said],
            "sures": [one.sure for one in said],
            "silent_s": silent_s(lease_s),
            # After two leases the janitor has cleared what they held in Redis.
            "cleared_s": 2 * lease_s,
        },
    )
    return [DeadProcess(row[0], row[1] - 1, tuple(row[2])) for row in rows]


async def silent_pods(
    db: Database, namespace: str, *, lease_s: float, limit: int
) -> list[tuple[str, str]]:
    """(uid, name) of Pods whose workers hold runs and have missed a renewal."""
    params = {"namespace": namespace, "silent_s": silent_s(lease_s), "limit": limit}
    return [(row[0], row[1]) for row in await db.rows(_SQL["silent_in_pods"], params)]


async def busy_pods(db: Database, pod_uids: Sequence[str]) -> dict[str, float]:
    """Pod uid → seconds that the longest of its runs has been going on; idle ones are not in it."""
    rows = await db.rows(_SQL["busy_in_pods"], {"pod_uids": list(pod_uids)})
    return {row[0]: row[1] for row in rows}


def silent_s(lease_s: float) -> float:
    """A worker renews each third of a lease: who was not seen for half of one has missed it."""
    return lease_s / 2
