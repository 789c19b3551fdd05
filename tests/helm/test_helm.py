"""What both Helms make of the chart: the same as the engine that all other tests of it use; and,
with a live release before them, nothing that an upgrade must not undo.
"""

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from tests.chart.engine import CHART, Object, load, name_of, of_kind, render
from tests.chart.matrix import EXTERNAL, MATRIX, POOLS
from tests.chart.test_refusals import WRONG
from tests.helm.cluster import Cluster, cluster
from tests.helm.program import Helm

POOL = "rc-researchcopilot-worker-default"
SECRET = "rc-researchcopilot"
KEY = {"existingSecret": "app-key", "existingSecretKey": "key"}


@pytest.fixture
def live() -> Iterator[Cluster]:
    """A cluster in which the release stands: its pool was scaled to 7, its secrets were made."""
    with cluster() as made:
        made.add(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": POOL, "namespace": "default"},
                "spec": {"replicas": 7},
            }
        )
        made.add(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": SECRET, "namespace": "default"},
                "data": {
                    key: b64encode(f"live {key}".encode()).decode()
                    for key in ("postgres-password", "valkey-password", "api-key")
                },
            }
        )
        yield made


def upgraded(helm: Helm, live: Cluster, values: dict[str, Any]) -> list[Object]:
    at = ("--kube-apiserver", live.url)
    return helm.template(
        values, "--dry-run=server", "--is-upgrade", "--disable-openapi-validation", *at
    )


def replicas(objects: list[Object], pool: str = POOL) -> Any:
    return of_kind(objects, "Deployment")[pool]["spec"].get("replicas", "not rendered")


def comparable(objects: list[Object]) -> dict[str, Object]:
    """By name; what was drawn by lot is left out of secrets, and with it what is made from it."""
    return {
        name_of(one): {**one, "data": sorted(one["data"])} if one["kind"] == "Secret" else one
        for one in objects
    }


@pytest.mark.parametrize("name", MATRIX)
def test_they_render_what_the_engine_of_the_tests_renders(helm: Helm, name: str) -> None:
    assert comparable(helm.template(MATRIX[name])) == comparable(render(load(), MATRIX[name]))


@pytest.mark.parametrize("name", WRONG)
def test_they_refuse_what_contradicts_and_say_why(helm: Helm, name: str) -> None:
    """Our own words are the same everywhere. For the schema's both Helms have their own, but name
    the value."""
    values, words = WRONG[name]
    done = helm.render(values)
    assert done.returncode != 0
    said = done.stderr.replace("/", ".")
    ours = not words[0].startswith("/")
    for word in words:
        if ours or word.startswith("/") or f'"{word}":' in json.dumps(values):
            assert word.strip("/").replace("/", ".") in said, done.stderr


def test_they_find_no_fault(helm: Helm) -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


def test_the_live_number_of_workers_is_kept(helm: Helm, live: Cluster) -> None:
    """Protects: `kubectl scale` outlives an upgrade. 7 rendered is what the cluster has, so that no
    owner of the field is contradicted; not rendered, the field is not ours at all."""
    assert replicas(upgraded(helm, live, {"worker": {"replicas": 3}})) == 7
    assert f"/apis/apps/v1/namespaces/default/deployments/{POOL}" in live.asked
    assert replicas(upgraded(helm, live, {})) == "not rendered"
    enforced = {"worker": {"replicas": 3, "replicasPolicy": "enforce"}}
    assert replicas(upgraded(helm, live, enforced)) == 3


def test_a_live_number_of_nought_is_kept_too(helm: Helm, live: Cluster) -> None:
    [path] = [path for path in live.objects if path.endswith(POOL)]
    live.objects[path] = {**live.objects[path], "spec": {"replicas": 0}}
    assert replicas(upgraded(helm, live, {"worker": {"replicas": 3}})) == 0


def test_a_pool_that_is_new_starts_as_asked(helm: Helm, live: Cluster) -> None:
    objects = upgraded(helm, live, POOLS)
    assert replicas(objects) == 7
    new = {"worker": {"pools": {"default": {"queues": {"runs": 1, "system": 1}},
                                "new": {"queues": {"more": 1}, "replicas": 2}}}}  # fmt: skip
    assert replicas(upgraded(helm, live, new), "rc-researchcopilot-worker-new") == 2


def secret(name: str, **data: str) -> Object:
    encoded = {key: b64encode(value.encode()).decode() for key, value in data.items()}
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": encoded}


def test_an_upgrade_sees_that_a_secret_has_changed(helm: Helm, live: Cluster) -> None:
    """Protects: rotation. Another password rolls the Pods; another key is put in by another Job,
    and rolls nobody, since no Pod reads it."""

    def marks(**secrets: str) -> tuple[list[str], set[str]]:
        for name, value in secrets.items():
            live.add(secret(f"app-{name}", uri=value, url=value, key=value))
        objects = upgraded(helm, live, {**EXTERNAL, "apiKey": KEY})
        pods = of_kind(objects, "Deployment").values()
        annotations = [one["spec"]["template"]["metadata"]["annotations"] for one in pods]
        return [one["checksum/secret"] for one in annotations], set(of_kind(objects, "Job"))

    before = marks(db="a", redis="b", key="c")
    assert marks() == before
    password, key = marks(redis="other"), marks(key="other")
    assert set(password[0]).isdisjoint(before[0])
    assert password[1].isdisjoint(before[1]), "the Job reads it too"
    assert key[0] == password[0]
    assert key[1].isdisjoint(password[1])


def test_secrets_that_were_made_stay(helm: Helm, live: Cluster) -> None:
    """Protects: the password that the volume of the bundled Postgres knows, and the key that people
    have; and an upgrade that changes nothing rolls no Pod."""
    first, second = (upgraded(helm, live, {}) for _ in range(2))
    data = of_kind(first, "Secret")[SECRET]["data"]
    assert data == {**live.objects[f"/api/v1/namespaces/default/secrets/{SECRET}"]["data"]}
    assert comparable(first) == comparable(second)
    assert data != of_kind(helm.template({}), "Secret")[SECRET]["data"]
