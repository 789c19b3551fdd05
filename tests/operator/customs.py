"""Objects of ours on an API server: the emulator with what Kubernetes does to custom resources, and
people at their kubectl.

It gives uids, generations and resource versions; prunes and refuses by the CRDs of the chart; keeps
status apart from the rest; refuses a patch of another uid and a deletion whose preconditions do not
hold. `answers` are given, in turn, to the next writes of a status instead of doing them.
"""

import asyncio
import copy
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import aiohttp.web
import kmock
from kmock import KubernetesError
from tests.operator.cluster import NAMESPACE, Cluster, Json, Served
from tests.operator.crd import admitted, crds
from tests.operator.stage import merged, stamp

from researchcopilot.core.ids import new_id
from researchcopilot.operator.objects import GROUP, VERSION
from researchcopilot.operator.projection import Projection
from researchcopilot.runtime.loop import Stop

RUNS = kmock.resource(GROUP, VERSION, "researchruns")
SCHEDULES = kmock.resource(GROUP, VERSION, "runschedules")
OURS = (RUNS, SCHEDULES)


class Customs(Cluster):
    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.answers: deque[KubernetesError] = deque()
        self.written: list[tuple[str, Json]] = []  # (name, status patch), also refused ones
        self.lost_events = False
        self.lists = 0  # answers to lists of ours
        for plural, crd in crds().items():
            self.add(f"{GROUP}/{VERSION}/{plural}", crd["spec"]["names"]["kind"], True, "status")

    # People

    async def kubectl_apply(
        self, resource: Any, name: str, spec: Json, namespace: str = NAMESPACE
    ) -> Json:
        """The object as it is stored. Raises what kubectl would show."""
        before = self.find(resource, name, namespace)
        body, wrong = admitted(
            resource.plural, {"metadata": {"name": name, "namespace": namespace}, "spec": spec}
        )
        if wrong:
            raise KubernetesError(422, "Invalid", "; ".join(wrong))
        if before is None:
            meta = {"uid": new_id(), "generation": 1, "creationTimestamp": stamp(datetime.now(UTC))}
            body["metadata"] |= meta
        elif before["spec"] == body["spec"]:
            return before
        else:
            meta = before["metadata"]
            body = {**before, "spec": body["spec"]}
            body["metadata"] = {**meta, "generation": meta["generation"] + 1}
        kind = self.resources[resource].kind
        await self._store(resource, {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, **body})
        return body

    async def kubectl_delete(self, resource: Any, name: str, namespace: str = NAMESPACE) -> None:
        found = self.find(resource, name, namespace)
        assert found is not None
        self.objects[resource, namespace, name].delete()
        await self._tell(resource, "DELETED", found)

    def find(self, resource: Any, name: str, namespace: str = NAMESPACE) -> Json | None:
        key = resource, namespace, name
        if key not in self.objects or self.objects[key].deleted:
            return None
        body: Json = copy.deepcopy(self.objects[key].raw)
        return body

    def status(self, name: str, resource: Any = RUNS) -> Json:
        found = self.find(resource, name)
        return dict(found.get("status") or {}) if found else {}

    def conditions(self, name: str, resource: Any = RUNS) -> dict[str, str]:
        """Type → status, as `kubectl wait` sees them."""
        return {one["type"]: one["status"] for one in self.status(name, resource)["conditions"]}

    # What is done to them

    async def _store(self, resource: Any, body: Json) -> None:
        meta = body["metadata"]
        key = resource, meta["namespace"], meta["name"]
        kind = "MODIFIED" if self.find(resource, meta["name"], meta["namespace"]) else "ADDED"
        body["metadata"] = {**meta, "resourceVersion": str(next(self.versions))}
        self.objects[key] = copy.deepcopy(body)
        await self._tell(resource, kind, body)

    async def _tell(self, resource: Any, kind: str, body: Json) -> None:
        version = int(body["metadata"]["resourceVersion"])
        if kind == "DELETED":
            version = next(self.versions)
        self.newest = version
        if not self.lost_events:
            event = {"type": kind, "object": copy.deepcopy(body)}
            self._histories[resource].events.append((version, event))
        await self.wake()

    async def _handle(self, request: Any) -> Any:
        wanted = request.resource in OURS and request.action in (
            kmock.action.UPDATE,
            kmock.action.DELETE,
        )
        if not wanted or self.refuse is not None:
            return await super()._handle(request)
        try:
            return aiohttp.web.json_response(await self._change(request))
        except KubernetesError as error:
            return await self._render_error(error)

    async def _serve_list(self, request: Any) -> Any:
        self.lists += request.resource in OURS
        return await super()._serve_list(request)

    async def _change(self, request: Any) -> Json:
        found = self.find(request.resource, request.name, request.namespace)
        if request.action == kmock.action.UPDATE:
            assert request.subresource == "status", "nothing but the status is ever written"
            self.written.append((request.name, request.data["status"]))
            if self.answers:
                raise self.answers.popleft()
        if found is None:
            raise KubernetesError(404, "NotFound", "not found")
        if request.action == kmock.action.UPDATE:
            return await self._write_status(request.resource, found, request.data)
        meta, wanted = found["metadata"], request.data.get("preconditions", {})
        if any(meta[name] != value for name, value in wanted.items()):
            raise KubernetesError(409, "Conflict", f"Precondition failed: {wanted} is not {meta}")
        await self.kubectl_delete(request.resource, request.name, request.namespace)
        return found

    async def _write_status(self, resource: Any, found: Json, patch: Json) -> Json:
        if patch["metadata"].get("uid", found["metadata"]["uid"]) != found["metadata"]["uid"]:
            raise KubernetesError(409, "Conflict", "Precondition failed: UID in precondition")
        status = merged(found.get("status") or {}, patch["status"])
        body = {**found, "status": status}
        kept, wrong = admitted(resource.plural, body)
        if wrong:
            raise KubernetesError(422, "Invalid", "; ".join(wrong))
        assert kept["status"] == status, "pruned: the schema does not know a field of the status"
        if body != found:
            await self._store(resource, body)
        stored = self.find(resource, found["metadata"]["name"], found["metadata"]["namespace"])
        assert stored is not None
        return stored


@asynccontextmanager
async def customs() -> AsyncIterator[tuple[Served, Customs]]:
    async with Customs() as cluster:
        served = Served(cluster)
        await served.open()
        try:
            yield served, cluster
        finally:
            await served.close()


@asynccontextmanager
async def running_beside(projection: Projection[Any]) -> AsyncIterator[None]:
    """The loop of a second operator; kopf cannot be twice in one process."""
    stop = Stop()
    task = asyncio.create_task(projection.run(stop))
    try:
        yield
    finally:
        stop()
        await asyncio.wait_for(task, 20)
