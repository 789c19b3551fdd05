"""What the chart installs is valid, restricted, and hangs together, whatever values are given."""

from typing import Any

import pytest
from tests.chart.conftest import Render
from tests.chart.engine import (
    Object,
    containers,
    environment,
    is_ours,
    name_of,
    of_kind,
    pods,
    validate,
)
from tests.chart.matrix import ALL_ON, MATRIX

from researchcopilot.__main__ import PARTS
from researchcopilot.core import settings

VERSIONS = ["1.29", "1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37"]
# Not Kubernetes' own, so it has no schema of them.
FOREIGN = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ScaledObject"}
MADE_BY_THE_CHART = "rc-researchcopilot"


def validated(objects: list[Object], version: str) -> int:
    known = [one for one in objects if one["kind"] not in FOREIGN]
    for one in known:
        validate(one, version)
    return len(known)


@pytest.mark.parametrize("name", MATRIX)
def test_objects_are_valid_for_the_newest_kubernetes(chart: Render, name: str) -> None:
    assert validated(chart(MATRIX[name]), VERSIONS[-1]) > 0


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_are_valid_for_every_kubernetes_that_the_chart_names(
    chart: Render, version: str
) -> None:
    assert validated(chart(ALL_ON), version) > 25


@pytest.mark.parametrize("name", MATRIX)
def test_every_pod_passes_the_restricted_standard(chart: Render, name: str) -> None:
    for owner, pod in pods(chart(MATRIX[name])):
        spec = pod["spec"]
        # The operator alone talks to the API server.
        assert spec["automountServiceAccountToken"] is owner.endswith("-operator"), owner
        assert spec["enableServiceLinks"] is False, f"{owner}: a release called rc makes RC_…"
        of_pod = spec["securityContext"]
        assert of_pod["runAsNonRoot"] is True, owner
        assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}, owner
        assert of_pod.get("runAsUser", 1) > 0
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert all({"hostPath"}.isdisjoint(volume) for volume in spec.get("volumes", []))
        for container in containers(pod):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, owner
            assert context["capabilities"] == {"drop": ["ALL"]}, owner
            assert context["readOnlyRootFilesystem"] is True, owner
            assert "privileged" not in context
            assert container["resources"]["requests"], owner
            assert container["resources"]["limits"]["memory"], owner


@pytest.mark.parametrize("name", MATRIX)
def test_every_variable_is_a_setting_and_every_value_is_taken(chart: Render, name: str) -> None:
    objects = chart(MATRIX[name])
    configs = of_kind(objects, "ConfigMap")
    for owner, pod in pods(objects):
        for container in filter(is_ours, containers(pod)):
            told: dict[str, Any] = {}
            for source in container.get("envFrom", []):
                if "configMapRef" in source:
                    told |= configs[source["configMapRef"]["name"]]["data"]
            told |= environment(container)
            ours = {key: value for key, value in told.items() if key.startswith("RC_")}
            given = {key: value for key, value in ours.items() if isinstance(value, str)}
            settings.load(given)
            known = {row[0] for row in settings.describe()}
            assert ours.keys() <= known, owner


@pytest.mark.parametrize("name", MATRIX)
def test_every_source_and_every_mount_exists(chart: Render, name: str) -> None:
    objects = chart(MATRIX[name])
    made = {key: set(one.get("data", {})) for key, one in of_kind(objects, "Secret").items()}
    for owner, pod in pods(objects):
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        claims = {"data"}
        for container in containers(pod):
            mounts = [mount["name"] for mount in container.get("volumeMounts", [])]
            assert set(mounts) <= volumes.keys() | claims, owner
            assert len({mount["mountPath"] for mount in container.get("volumeMounts", [])}) == len(
                mounts
            )
            names = [one["name"] for one in container.get("env", [])]
            assert len(names) == len(set(names)), f"{owner}: a variable twice"
            for source in environment(container).values():
                if isinstance(source, dict) and "secretKeyRef" in source:
                    check_secret(made, source["secretKeyRef"], owner)
        for volume in volumes.values():
            for item in volume.get("secret", {}).get("items", []):
                ref = {"name": volume["secret"]["secretName"], "key": item["key"]}
                check_secret(made, ref, owner)


def check_secret(made: dict[str, set[str]], ref: dict[str, str], owner: str) -> None:
    """What is not made here is an existing secret that the values name."""
    if ref["name"] in made:
        assert ref["key"] in made[ref["name"]], f"{owner}: {ref}"
    else:
        assert ref["name"].startswith("app-"), f"{owner}: nobody makes {ref}"


@pytest.mark.parametrize("name", MATRIX)
def test_selectors_find_their_pods_and_ports_their_containers(chart: Render, name: str) -> None:
    objects = chart(MATRIX[name])
    labels = [(owner, pod["metadata"]["labels"], pod) for owner, pod in pods(objects)]
    for one in objects:
        spec = one.get("spec", {})
        if one["kind"] in ("Deployment", "StatefulSet", "PodDisruptionBudget"):
            wanted = spec["selector"]["matchLabels"]
            found = [owner for owner, have, _ in labels if wanted.items() <= have.items()]
            assert len(found) == 1, f"{name_of(one)} selects {found}"
        if one["kind"] == "Service":
            behind = [pod for _, have, pod in labels if spec["selector"].items() <= have.items()]
            ports = {
                port["name"]
                for pod in behind
                for c in containers(pod)
                for port in c.get("ports", [])
            }
            assert {port["targetPort"] for port in spec["ports"]} <= ports, name_of(one)


@pytest.mark.parametrize("name", MATRIX)
def test_names_are_unique_and_short_enough(chart: Render, name: str) -> None:
    objects = chart(MATRIX[name])
    names = [name_of(one) for one in objects]
    assert len(names) == len(set(names))
    for one in objects:
        # A Pod's name gets up to 17 characters more than its Deployment's.
        limit = 63 if one["kind"] not in ("Deployment", "StatefulSet") else 58
        assert len(one["metadata"]["name"]) <= limit
    for owner, pod in pods(objects):
        inside = [container["name"] for container in containers(pod)]
        assert len(inside) == len(set(inside)), owner


@pytest.mark.parametrize("name", MATRIX)
def test_every_command_is_one_that_the_image_has(chart: Render, name: str) -> None:
    for owner, pod in pods(chart(MATRIX[name])):
        for container in filter(is_ours, containers(pod)):
            if "command" not in container:
                assert container["args"][0] in PARTS, owner


def test_all_images_come_from_the_private_registry(chart: Render) -> None:
    for owner, pod in pods(chart(MATRIX["private registry"])):
        assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]
        for container in containers(pod):
            assert container["image"].startswith("registry.example.com:5000/"), owner


def test_no_number_of_a_user_is_left_for_a_platform_that_gives_its_own(chart: Render) -> None:
    for owner, pod in pods(chart(MATRIX["arbitrary user"])):
        if "postgresql" not in owner and "valkey" not in owner:
            assert pod["spec"]["securityContext"].keys() == {"runAsNonRoot", "seccompProfile"}


def test_all_off_installs_the_stores_alone(chart: Render) -> None:
    kinds = {name_of(one) for one in chart(MATRIX["all off"])}
    assert {kind.split("/")[0] for kind in kinds} == {
        "ConfigMap", "Secret", "Service", "StatefulSet",
    }  # fmt: skip


def test_a_secret_is_kept_with_the_volume_that_knows_its_password(chart: Render) -> None:
    secret = of_kind(chart(), "Secret")[MADE_BY_THE_CHART]
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    secret = of_kind(chart(MATRIX["urls"]), "Secret")[MADE_BY_THE_CHART]
    assert "annotations" not in secret["metadata"]
