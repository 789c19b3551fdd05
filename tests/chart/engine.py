"""Helm's own engine in this process, and ways to look at what it renders."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate  # type: ignore[import-untyped]
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/researchcopilot"
Object = dict[str, Any]
_valid: set[tuple[str, str]] = set()
# It reads a megabyte of definitions anew for each object.
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse(text: str) -> list[Any]:
    return [one for one in yaml.load_all(text, Loader=_Loader) if one is not None]


def load() -> helm_python.Chart:
    return helm_python.Chart.load(CHART)


def texts(chart: helm_python.Chart, values: dict[str, Any], **options: Any) -> dict[str, str]:
    """Template → what it renders to, without those that render to nothing."""
    options = {"name": "rc", "namespace": "default", **options}
    rendered = chart.render(values, **options)
    return {Path(name).name: text for name, text in rendered.items() if text.strip()} | {
        name: text for name, text in rendered.items() if text.strip()
    }


def render(chart: helm_python.Chart, values: dict[str, Any], **options: Any) -> list[Object]:
    """All objects, hooks included."""
    found = texts(chart, values, **options)
    return [
        one
        for name, text in found.items()
        if "/" in name and name.endswith(".yaml")
        for one in parse(text)
    ]


def validate(one: Object, version: str) -> None:
    """Raises if this object is not one of that version of Kubernetes."""
    known = (version, json.dumps(one, sort_keys=True))
    if known not in _valid:
        kubernetes_validate.validate(one, version, strict=True)
        _valid.add(known)


def name_of(one: Object) -> str:
    return f"{one['kind']}/{one['metadata']['name']}"


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def pods(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """(owner, Pod template) of whatever starts Pods."""
    for one in objects:
        if one["kind"] == "Pod":
            yield name_of(one), one
        elif "template" in one.get("spec", {}):
            yield name_of(one), one["spec"]["template"]


def containers(pod: Object) -> list[Object]:
    spec = pod["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def environment(container: Object) -> dict[str, Any]:
    """Variable → its value, or the source that it comes from."""
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container.get("env", [])}


def is_ours(container: Object) -> bool:
    return "researchcopilot" in container["image"]
