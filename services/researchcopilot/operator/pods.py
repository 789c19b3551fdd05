"""Events of worker Pods: each state that says something new is handed on, once.

Pods are only read (`on.event`): a handler of creations or updates would have kopf write annotations
to every Pod. The API server filters by labels, so that ten thousand other Pods cost nothing.
"""

from collections import OrderedDict
from typing import Any

import kopf

from researchcopilot.operator.context import Context
from researchcopilot.operator.deletion_cost import DeletionCost
from researchcopilot.operator.recovery import Recovery
from researchcopilot.operator.signals import Signal, read

REMEMBERED = 10_000


class Seen:
    """What each Pod has said last: Pods report a hundred times what we have heard once."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._said: OrderedDict[str, object] = OrderedDict()
        self._most = most

    def is_news(self, signal: Signal) -> bool:
        if self._said.get(signal.pod_uid) == signal.key:
            return False
        self._said[signal.pod_uid] = signal.key
        self._said.move_to_end(signal.pod_uid)
        if len(self._said) > self._most:
            self._said.popitem(last=False)
        return True


def register_pods(
    registry: kopf.OperatorRegistry,
    context: Context,
    recovery: Recovery,
    cost: DeletionCost | None,
) -> None:
    """`cost` None: nobody asked for it."""
    container = context.settings.operator.container
    seen = Seen()

    @kopf.on.event("", "v1", "pods", registry=registry)
    async def on_pod(event: Any, **_: Any) -> None:
        pod, kind = event["object"], event["type"]
        if pod["metadata"].get("namespace") != context.namespace:
            return
        signal = read(kind, pod, container)
        if signal is not None and seen.is_news(signal):
            recovery.put(signal)
        if cost is not None:
            cost.seen(kind, pod)
