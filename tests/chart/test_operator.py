"""The operator in the chart: what it may, what it is told, and that it is there only if asked
for."""

import re

import pytest
from tests.chart.conftest import Render
from tests.chart.engine import CHART, containers, environment, of_kind, pods
from tests.chart.matrix import ALL_ON, MATRIX

ON = {"operator": {"enabled": True}}
NAME = "rc-researchcopilot-operator"


@pytest.mark.parametrize("name", [n for n in MATRIX if n not in ("all on", "operated")])
def test_it_is_there_only_if_asked_for(chart: Render, name: str) -> None:
    assert "operator" not in str([one["metadata"]["name"] for one in chart(MATRIX[name])])


def test_nothing_of_it_belongs_to_the_cluster_but_its_kinds(chart: Render) -> None:
    """`crds.keep` says that these stay."""
    found = [one for one in chart(ON) if "namespace" not in one["metadata"]]
    assert {one["kind"] for one in found} == {"CustomResourceDefinition"}


def test_there_is_one_and_an_upgrade_stops_it_before_the_next(chart: Render) -> None:
    spec = of_kind(chart(ON), "Deployment")[NAME]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_the_pods_that_it_watches_are_the_workers_of_this_release(chart: Render) -> None:
    """All pools of it, and nobody else."""
    objects = chart({**MATRIX["pools"], **ON})
    [own] = [pod for owner, pod in pods(objects) if owner.endswith("-operator")]
    told = environment(containers(own)[-1])
    wanted = dict(part.split("=") for part in told["RC_OPERATOR_SELECTOR"].split(","))
    found = {
        owner for owner, pod in pods(objects) if wanted.items() <= pod["metadata"]["labels"].items()
    }
    assert found == {
        f"Deployment/rc-researchcopilot-worker-{p}" for p in MATRIX["pools"]["worker"]["pools"]
    }
    assert told["RC_OPERATOR_NAMESPACE"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}


def test_a_worker_is_told_where_it_runs(chart: Render) -> None:
    for owner, pod in pods(chart(ON)):
        if "-worker-" in owner:
            told = environment(containers(pod)[-1])
            paths = {name: told[f"RC_POD_{name}"]["fieldRef"]["fieldPath"].split(".")[-1]
                     for name in ("NAME", "UID", "NAMESPACE")}  # fmt: skip
            assert paths == {"NAME": "name", "UID": "uid", "NAMESPACE": "namespace"}


def test_its_account_is_bound_to_its_rights_and_to_no_others(chart: Render) -> None:
    objects = chart(ALL_ON)
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        [binding] = of_kind(objects, kind).values()
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": NAME, "namespace": "default"}
        ]
        role = of_kind(objects, binding["roleRef"]["kind"])
        assert binding["roleRef"]["name"] in role
    accounts = {owner: pod["spec"].get("serviceAccountName") for owner, pod in pods(objects)}
    assert [owner for owner, name in accounts.items() if name == NAME] == [f"Deployment/{NAME}"]


def test_the_readme_has_a_reason_for_each_right(chart: Render) -> None:
    """And none that is not given."""
    section = (CHART / "README.md").read_text().split("**Rights.**")[1].split("## ")[0]
    told = set()
    for resources, verbs in re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", section, re.MULTILINE):
        for resource in re.findall(r"`([^`]+)`", resources):
            told |= {(resource, verb.strip()) for verb in verbs.split(",")}
    values = {"operator": {"enabled": True, "deletionCost": True}}
    given = {
        (resource, verb)
        for role in of_kind(chart(values), "Role").values()
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert told == given
