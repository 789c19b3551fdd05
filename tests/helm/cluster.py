"""So much of a Kubernetes API over HTTP as Helm reads before it renders: versions, kinds, objects.

It answers GET only. What Helm then does with the objects (server-side apply) needs a real cluster.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.chart.engine import Object

VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.0"}
# Group and version → kinds, with their plurals.
KINDS = {
    "v1": {
        "Secret": "secrets",
        "ConfigMap": "configmaps",
        "Service": "services",
        "ServiceAccount": "serviceaccounts",
    },
    "apps/v1": {"Deployment": "deployments", "StatefulSet": "statefulsets"},
    "autoscaling/v2": {"HorizontalPodAutoscaler": "horizontalpodautoscalers"},
    "batch/v1": {"Job": "jobs"},
    "keda.sh/v1alpha1": {"ScaledObject": "scaledobjects"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
}


def kinds(version: str) -> Object:
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": [
            {"name": plural, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get"]}
            for kind, plural in KINDS[version].items()
        ],
    }


def root(version: str) -> str:
    return "/api/v1" if version == "v1" else f"/apis/{version}"


def group(version: str) -> Object:
    name, _, number = version.partition("/")
    this = {"groupVersion": version, "version": number}
    return {"name": name, "versions": [this], "preferredVersion": this}


PAGES: Mapping[str, Object] = {
    "/version": VERSION,
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [group(version) for version in KINDS if version != "v1"],
    },
    **{root(version): kinds(version) for version in KINDS},
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """`objects`: path → object; `asked`: every path that was asked for."""

    url: str
    objects: dict[str, Object]
    asked: list[str] = field(default_factory=list)

    def add(self, one: Object) -> None:
        version, name = one["apiVersion"], one["metadata"]["name"]
        plural = KINDS[version][one["kind"]]
        self.objects[f"{root(version)}/namespaces/default/{plural}/{name}"] = one

    def answer(self, path: str) -> tuple[int, Object]:
        path = path.partition("?")[0]
        self.asked.append(path)
        found = PAGES.get(path) or self.objects.get(path)
        if found is not None:
            return 200, found
        missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound"}
        return 404, {**missing, "code": 404, "message": f"{path} not found"}


@contextmanager
def cluster() -> Iterator[Cluster]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = made.answer(self.path)
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = Cluster(f"http://127.0.0.1:{server.server_address[1]}", {})
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
