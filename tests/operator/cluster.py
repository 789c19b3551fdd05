"""An API server to talk to: kmock's emulator over real HTTP, with what it leaves out and the
operator leans on: selectors, pages, resource versions, watches that begin where the list ended,
that end after `timeoutSeconds`, and that answer 410 to what is too old.

    async with serving() as served:
        await served.cluster.apply(PODS, a_pod)     # somebody does it, and watchers hear of it
        await served.cluster.remove(PODS, "a")

`refuse` makes it answer an error to everything, `refuse_kind` and `refuse_patch` to some; watches
that begin while it is `stalled` are told nothing and do not end; `cut` ends all watches; `forget`
makes older resource versions 410.
"""

import asyncio
import collections
import contextlib
import copy
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import kmock
import kopf
import yaml
from kmock import KubernetesEmulator, KubernetesError

NAMESPACE = "research"
PODS = kmock.resource("", "v1", "pods")
EVENTS = kmock.resource("", "v1", "events")
RESOURCES = {
    "v1/namespaces": ("Namespace", False),
    "v1/pods": ("Pod", True),
    "v1/events": ("Event", True),
    "apiextensions.k8s.io/v1/customresourcedefinitions": ("CustomResourceDefinition", False),
}
VERBS = ("create", "delete", "get", "list", "patch", "update", "watch")
Json = dict[str, Any]


class History:
    """What happened to the objects of a kind, each with its resource version; kmock's own bus has
    no past."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self.events: list[tuple[int, Json]] = []

    async def put(self, *items: Json) -> None:
        for item in items:
            version = next(self._cluster.versions)
            seen = copy.deepcopy(dict(item["object"]))
            seen.setdefault("metadata", {})["resourceVersion"] = str(version)
            self._cluster.newest = version
            self.events.append((version, {"type": item["type"], "object": seen}))
        await self._cluster.wake()


class Cluster(KubernetesEmulator):
    """See above. Its state may be looked at through `objects` and `asked`."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.versions: Iterator[int] = iter(range(1, 1_000_000_000))
        self.newest = 0
        self.oldest = 0
        self.refuse: KubernetesError | None = None
        self.refuse_kind: dict[Any, KubernetesError] = {}
        self.refuse_patch: KubernetesError | None = None
        self.stalled = False
        self.watchers = 0
        self.asked: list[Any] = []
        self.sent = 0  # objects in lists and watches
        self._cuts = 0
        self._changed = asyncio.Condition()
        self._histories: dict[Any, History] = collections.defaultdict(lambda: History(self))
        self._buses = self._histories  # type: ignore[assignment]
        for name, (kind, namespaced) in RESOURCES.items():
            self.add(name, kind, namespaced)

    def add(self, name: str, kind: str, namespaced: bool = True, *subresources: str) -> None:
        """Serve one more kind."""
        self.resources[name] = kmock.ResourceInfo(
            kind=kind, namespaced=namespaced, verbs=VERBS, subresources=subresources
        )

    # What happens to its objects

    async def apply(self, resource: Any, body: Json) -> None:
        """Create or replace."""
        resource = kmock.resource(resource)
        meta = body["metadata"]
        key = resource, meta.get("namespace"), meta["name"]
        found = key in self.objects and not self.objects[key].deleted
        self.objects[key] = copy.deepcopy(body)
        kind = "MODIFIED" if found else "ADDED"
        await self._histories[resource].put({"type": kind, "object": body})

    async def remove(self, resource: Any, name: str, namespace: str = NAMESPACE) -> None:
        resource = kmock.resource(resource)
        found = self.objects[resource, namespace, name]
        body = copy.deepcopy(found.raw)
        found.delete()
        await self._histories[resource].put({"type": "DELETED", "object": body})

    async def tell(self, resource: Any, kind: str, body: Json) -> None:
        """An event alone, whatever the objects are: one that comes twice, or late."""
        await self._histories[kmock.resource(resource)].put({"type": kind, "object": body})

    def forget(self) -> None:
        """All that was is too old to begin a watch with."""
        self.oldest = self.newest + 1
        next(self.versions)
        self.newest += 1

    async def cut(self) -> None:
        self._cuts += 1
        await self.wake()

    async def wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # What it answers

    async def _handle(self, request: Any) -> Any:
        self.asked.append(request)
        refused = self.refuse or self.refuse_kind.get(request.resource)
        if request.method is kmock.method.PATCH:
            refused = refused or self.refuse_patch
        if refused is not None:
            return await self._render_error(refused)
        return await super()._handle(request)

    async def _serve_list(self, request: Any) -> Any:
        kind = self.resources[request.resource].kind
        found = [
            obj.raw
            for (resource, *_), obj in self.objects.items()
            if resource == request.resource and not obj.deleted and matches(request, obj.raw)
        ]
        start = int(request.params.get("continue") or 0)
        limit = int(request.params.get("limit") or 0) or len(found)
        meta = {"resourceVersion": str(self.newest)}
        self.sent += len(found[start : start + limit])
        if start + limit < len(found):
            meta["continue"] = str(start + limit)
        return {
            "kind": f"{kind}List",
            "apiVersion": "v1",
            "metadata": meta,
            "items": found[start : start + limit],
        }

    async def _serve_watch(self, request: Any) -> AsyncIterator[Any]:
        yield b""  # the headers
        since = int(request.params.get("resourceVersion") or 0)
        if since < self.oldest:
            yield {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
            return
        lasts = 3600 if self.stalled else float(request.params.get("timeoutSeconds") or 3600)
        stalled, end = self.stalled, time.monotonic() + lasts
        history, cuts = self._histories[request.resource], self._cuts
        place = 0
        self.watchers += 1
        try:
            while (left := end - time.monotonic()) > 0 and cuts == self._cuts:
                while place < len(history.events) and not stalled:
                    version, event = history.events[place]
                    place += 1
                    if version > since and matches(request, event["object"]):
                        self.sent += 1
                        yield event
                async with self._changed:
                    if place >= len(history.events) or stalled:
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(self._changed.wait(), left)
        finally:
            self.watchers -= 1


def matches(request: Any, body: Json) -> bool:
    meta = body["metadata"]
    if request.namespace is not None and meta.get("namespace") != request.namespace:
        return False
    labels = meta.get("labels") or {}
    fields = {"metadata.name": meta["name"], "metadata.namespace": meta.get("namespace")}
    return all(
        found.get(name) == value
        for found, text in (
            (labels, request.params.get("labelSelector")),
            (fields, request.params.get("fieldSelector")),
        )
        for name, _, value in (part.partition("=") for part in (text or "").split(",") if part)
    )


class Served:
    """A cluster behind a port, which may be closed and opened again."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._server = kmock.Server(cluster)
        self._port: int | None = None
        self.wide = False  # the operator of this test may have rights to the whole cluster

    async def open(self) -> None:
        self._server = kmock.Server(self.cluster, port=self._port)
        await self._server.__aenter__()
        self._port = self._server.port

    async def close(self) -> None:
        await self.cluster.cut()
        await self._server.__aexit__(None, None, None)

    def credentials(self) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(
            server=f"http://127.0.0.1:{self._port}", default_namespace=NAMESPACE
        )

    def kubeconfig(self) -> str:
        """The text of one, for a process."""
        return kubeconfig(str(self.credentials().server))


def kubeconfig(server: str) -> str:
    context = {"cluster": "c", "user": "u", "namespace": NAMESPACE}
    return yaml.safe_dump(
        {
            "current-context": "c",
            "contexts": [{"name": "c", "context": context}],
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {}}],
        }
    )


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    async with Cluster() as cluster:
        served = Served(cluster)
        await served.open()
        try:
            yield served
        finally:
            await served.close()
