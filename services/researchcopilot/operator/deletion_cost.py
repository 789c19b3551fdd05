"""Scale-in that spares the busy: `controller.kubernetes.io/pod-deletion-cost` from running runs.

A ReplicaSet that gets smaller removes the cheapest Pods first. An idle worker costs nothing, a busy
one the more the longer its oldest run goes on; written only when that class changes, since each
write is one for the API server and one for every watcher. Best effort, as Kubernetes itself says.
An annotation that somebody else has put there is left alone.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from researchcopilot.core.errors import ResearchCopilotError
from researchcopilot.operator.context import Context
from researchcopilot.operator.kube import KubeRefused
from researchcopilot.operator.metrics import COST_WRITES, FAILED
from researchcopilot.storage.pods import busy_pods

log = logging.getLogger(__name__)
ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
MANAGER = "researchcopilot-operator"
# The oldest run goes on for so many seconds → cost. Idle: no annotation, which counts as 0.
CLASSES = ((0.0, "100"), (60.0, "200"), (600.0, "300"), (3600.0, "400"))
OURS = frozenset(cost for _, cost in CLASSES)
MOST = 50  # writes of one round


def cost_of(longest_s: float | None) -> str | None:
    if longest_s is None:
        return None
    return [cost for since, cost in CLASSES if longest_s >= since or since == 0.0][-1]


@dataclass(frozen=True, slots=True)
class Marked:
    """A Pod and the cost that stands on it."""

    name: str
    cost: str | None


def read_mark(pod: Mapping[str, Any]) -> Marked | None:
    """None for a Pod whose cost is not ours to write."""
    meta = pod["metadata"]
    if meta.get("deletionTimestamp"):
        return None
    cost = (meta.get("annotations") or {}).get(ANNOTATION)
    if cost is not None and (cost not in OURS or _owner(meta) not in (MANAGER, None)):
        return None
    return Marked(meta["name"], cost)


def _owner(meta: Mapping[str, Any]) -> str | None:
    """Who wrote the annotation, as far as the API server has noted it."""
    for entry in meta.get("managedFields") or ():
        fields = (entry.get("fieldsV1") or {}).get("f:metadata", {}).get("f:annotations", {})
        if f"f:{ANNOTATION}" in fields:
            manager: str | None = entry.get("manager")
            return manager
    return None


class DeletionCost:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._pods: dict[str, Marked] = {}

    def seen(self, kind: str | None, pod: Mapping[str, Any]) -> None:
        """What an event says of a Pod."""
        uid = pod["metadata"]["uid"]
        mark = None if kind == "DELETED" else read_mark(pod)
        if mark is None:
            self._pods.pop(uid, None)
        else:
            self._pods[uid] = mark

    async def write(self) -> None:
        """One round. Raises Unavailable if Postgres is away."""
        busy = await busy_pods(self._context.db, list(self._pods))
        wanted = {uid: cost_of(busy.get(uid)) for uid in self._pods}
        changed = [uid for uid, mark in self._pods.items() if mark.cost != wanted[uid]]
        for uid in changed[:MOST]:
            if (mark := self._pods.get(uid)) is not None:
                await self._put(uid, mark, wanted[uid])

    async def _put(self, uid: str, mark: Marked, cost: str | None) -> None:
        # The uid makes the API server refuse it for another Pod of this name.
        body = {"metadata": {"uid": uid, "annotations": {ANNOTATION: cost}}}
        path = f"/api/v1/namespaces/{self._context.namespace}/pods/{mark.name}"
        try:
            await self._context.kube.patch(path, body, fieldManager=MANAGER)
        except ResearchCopilotError as error:
            if isinstance(error, KubeRefused) and error.status in (404, 409, 422):
                self._pods.pop(uid, None)  # it is gone, or another one has its name
                return
            FAILED.labels("deletion_cost").inc()
            log.warning("a deletion cost could not be written; it is tried again: %s", error)
            return
        COST_WRITES.inc()
        if uid in self._pods:
            self._pods[uid] = Marked(mark.name, cost)
