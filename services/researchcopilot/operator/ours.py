"""Our objects at the API server: all of one kind listed, one's status written, one deleted.

Only the status is ever written. A write names the uid that it is meant for, so that an object that
was deleted and made again under its name is not taken for the one before.
"""

import time
from collections.abc import AsyncIterator
from typing import Any

from researchcopilot.core.backoff import full_jitter
from researchcopilot.core.errors import Unavailable
from researchcopilot.operator.kube import Kube, KubeRefused
from researchcopilot.operator.metrics import STATUS_WRITES
from researchcopilot.operator.objects import GROUP, VERSION, Seen
from researchcopilot.operator.status import Json

PAGE = 100  # objects of a list that are in memory at once: each can have a quarter of a megabyte


def pause_after(failures: int) -> float:
    """Seconds after so many in a row: 0.2, 0.4, … 30. For one at a time, and so without jitter."""
    return full_jitter(failures, base=0.2, cap=30.0, rand=1.0)


class Ours:
    """`namespace` None: those of all namespaces."""

    def __init__(self, kube: Kube, kind: str, plural: str, namespace: str | None) -> None:
        self._kube = kube
        self._kind = kind
        self._plural = plural
        self._namespace = namespace
        self._failures = 0
        # Until then (monotonic) nothing is written: an API server that cannot answer for one is
        # not asked for the others too, who would wait for it, and what they ask for with them.
        self.quiet_until = 0.0

    def _path(self, namespace: str | None, name: str | None = None) -> str:
        within = f"/namespaces/{namespace}" if namespace else ""
        path = f"/apis/{GROUP}/{VERSION}{within}/{self._plural}"
        return f"{path}/{name}" if name else path

    async def all(self) -> AsyncIterator[dict[str, Any]]:
        """Every object, as it is now. Raises KubeRefused and Unavailable, also in the middle."""
        try:
            async for page in self._kube.pages(self._path(self._namespace), limit=str(PAGE)):
                for body in page:
                    yield body
        except KubeRefused as error:
            if error.status != 404:
                raise
            raise KubeRefused(
                f"{error} The cluster lacks the CRD {self._plural}.{GROUP}: install it with the "
                "chart (crds.install), or set operator.customResources to false.",
                404,
            ) from error

    async def show(self, seen: Seen, patch: Json) -> dict[str, Any] | None:
        """The object with this written into its status; None if it is gone."""
        path = f"{self._path(seen.namespace, seen.name)}/status"
        try:
            body = await self._kube.patch(path, {"metadata": {"uid": seen.uid}, "status": patch})
        except (KubeRefused, Unavailable) as error:
            STATUS_WRITES.labels(self._kind, "failed").inc()
            if isinstance(error, KubeRefused) and error.status == 404:
                return None  # the event, or the next list, says so too
            if isinstance(error, Unavailable):
                self._be_quiet()
            raise
        STATUS_WRITES.labels(self._kind, "written").inc()
        self._failures = 0
        return body

    def _be_quiet(self) -> None:
        self._failures += 1
        self.quiet_until = time.monotonic() + pause_after(self._failures)

    async def delete(self, seen: Seen) -> None:
        """If it is as it was seen; twice is once."""
        body = {
            "preconditions": {"uid": seen.uid, "resourceVersion": str(seen.version)},
            "propagationPolicy": "Background",
        }
        try:
            await self._kube.call("DELETE", self._path(seen.namespace, seen.name), body=body)
        except KubeRefused as error:
            if error.status != 404:
                raise
