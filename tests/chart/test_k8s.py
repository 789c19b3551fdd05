"""What stands beside the chart: plain manifests, examples, skaffold. None may drift from it."""

import re
from typing import Any

import yaml
from tests.chart.conftest import Render
from tests.chart.engine import ROOT, Object, name_of, parse, pods, validate

K8S = ROOT / "k8s"
HELM_S = {"app.kubernetes.io/managed-by", "helm.sh/chart"}


def plain() -> list[Object]:
    return parse((K8S / "plain/manifests.yaml").read_text())


def bare(one: Object) -> Object:
    """Without what only Helm, or only kustomize, puts there."""
    meta = {key: value for key, value in one["metadata"].items() if key != "namespace"}
    meta["labels"] = {k: v for k, v in meta["labels"].items() if k not in HELM_S}
    return {**one, "metadata": meta}


def test_the_plain_manifests_are_the_chart(chart: Render) -> None:
    """If this fails: `make chart`."""
    values = yaml.safe_load((K8S / "plain/values.yaml").read_text())
    installed = chart(values, name="researchcopilot", namespace="researchcopilot")
    here, there = ({name_of(one): bare(one) for one in some} for some in (plain(), installed))
    assert here.keys() == there.keys()
    assert here == there


def test_the_plain_manifests_are_valid_and_hold_no_secret() -> None:
    for one in plain():
        validate(one, "1.37")
        assert one["kind"] != "Secret"
        assert "Helm" not in str(one["metadata"]["labels"])


def test_kustomize_names_files_that_exist_and_makes_the_secret_that_is_read() -> None:
    told = yaml.safe_load((K8S / "plain/kustomization.yaml").read_text())
    assert all((K8S / "plain" / name).is_file() for name in told["resources"])
    [secret] = told["secretGenerator"]
    keys = re.findall(r"^([a-z-]+)=", (K8S / "plain/secrets.env.example").read_text(), re.MULTILINE)
    text = (K8S / "plain/manifests.yaml").read_text()
    read = set(re.findall(r"name: researchcopilot-secrets\n\s+key: (\S+)", text))
    assert secret["name"] == "researchcopilot-secrets"
    assert read | {"api-key"} == set(keys)
    assert {one["name"] for one in told["images"]} == ours(plain())


def ours(objects: list[Object]) -> set[str]:
    return {
        container["image"].split(":")[0]
        for _, pod in pods(objects)
        for container in pod["spec"]["containers"]
        if container["image"].startswith("researchcopilot-")
    }


def test_the_examples_can_be_installed(chart: Render) -> None:
    pooled = yaml.safe_load((K8S / "examples/keda.yaml").read_text())
    assert any(one["kind"] == "ScaledObject" for one in chart(pooled))
    chart(yaml.safe_load((K8S / "values-dev.yaml").read_text()))
    [argo] = parse((K8S / "examples/argo-cd.yaml").read_text())
    values: dict[str, Any] = argo["spec"]["source"]["helm"]["valuesObject"]
    again = [chart(values, revision=number) for number in (1, 2)]
    assert again[0] == again[1], "Argo CD renders again and again: it must not differ"
    for one in parse((K8S / "examples/sentinel.yaml").read_text()):
        validate(one, "1.37")


def test_skaffold_builds_what_the_dockerfile_and_the_chart_name(chart: Render) -> None:
    told = yaml.safe_load((ROOT / "skaffold.yaml").read_text())
    targets = set(re.findall(r"^FROM runtime AS (\w+)", (ROOT / "Dockerfile").read_text(), re.M))
    built = {one["image"]: one["docker"]["target"] for one in told["build"]["artifacts"]}
    assert set(built.values()) == targets
    assert set(built) == ours(chart({"operator": {"enabled": True}}))
    [release] = told["deploy"]["helm"]["releases"]
    values: dict[str, Any] = {}
    for path, template in release["setValueTemplates"].items():
        part, _, key = path.split(".")
        assert template.endswith(f"researchcopilot_{part}}}}}")
        values.setdefault(part, {}).setdefault("image", {})[key] = "x"
    chart(values)


def test_the_dockerfile_runs_with_the_requirements_of_each_part() -> None:
    text = (ROOT / "Dockerfile").read_text()
    for target in re.findall(r"^FROM runtime AS (\w+)", text, re.MULTILINE):
        assert f"COPY requirements/{target}.txt" in text
        assert f'CMD ["{target}"]' in text
    assert re.search(r"^USER \d+:\d+$", text, re.MULTILINE)
