"""The CRDs in the chart: with the operator that serves them, kept unless asked otherwise."""

from typing import Any

import pytest
from tests.chart.conftest import Render
from tests.chart.engine import of_kind

NAMES = {"researchruns.researchcopilot.dev", "runschedules.researchcopilot.dev"}


def crds(chart: Render, **values: Any) -> dict[str, Any]:
    return of_kind(chart({"operator": {"enabled": True}, **values}), "CustomResourceDefinition")


def test_they_come_with_the_operator_and_outlive_the_release(chart: Render) -> None:
    """Without them goes every object, and with each its run."""
    found = crds(chart)
    assert found.keys() == NAMES
    for one in found.values():
        assert one["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        assert "namespace" not in one["metadata"], "it belongs to the cluster"
    for one in crds(chart, crds={"keep": False}).values():
        assert "annotations" not in one["metadata"]


@pytest.mark.parametrize(
    "values",
    [
        {"operator": {"enabled": False}},
        {"operator": {"enabled": True, "customResources": False}},
        {"crds": {"install": False}},
    ],
)
def test_they_do_not_come_where_nobody_serves_them_or_another_brings_them(
    chart: Render, values: dict[str, Any]
) -> None:
    assert crds(chart, **values) == {}


def test_the_operator_may_do_what_it_does_to_them_and_no_more(chart: Render) -> None:
    """Never to the objects' own specs: their status alone is written, and only runs are deleted."""
    [role] = of_kind(chart({"operator": {"enabled": True}}), "Role").values()
    allowed = {
        resource: sorted(rule["verbs"])
        for rule in role["rules"]
        if rule["apiGroups"] == ["researchcopilot.dev"]
        for resource in rule["resources"]
    }
    assert allowed == {
        "researchruns": ["delete", "list", "watch"],
        "researchruns/status": ["patch"],
        "runschedules": ["list", "watch"],
        "runschedules/status": ["patch"],
    }
