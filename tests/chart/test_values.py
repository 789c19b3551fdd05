"""Values: what is made from them is fresh, what is given arrives, and nothing breaks the YAML."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.chart.conftest import Render
from tests.chart.engine import CHART, ROOT, containers, environment, of_kind, pods

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=30)
LABEL = st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,20}[A-Za-z0-9])?", fullmatch=True)
SLOTS = st.dictionaries(st.from_regex(r"[a-z0-9_-]{1,20}", fullmatch=True), st.integers(1, 1000))
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "commonLabels": st.dictionaries(LABEL, LABEL, max_size=2),
        "commonAnnotations": st.dictionaries(LABEL, TEXT, max_size=2),
        "nameOverride": st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True),
        "settings": st.fixed_dictionaries(
            {},
            optional={
                "REDIS_PREFIX": TEXT,
                "API_MAX_BODY_BYTES": st.integers(1024, 268_435_456),
                "LEASE_SECONDS": st.floats(0.03, 3600),
            },
        ),
    },
)


def test_what_is_made_from_the_values_is_fresh() -> None:
    """If this fails: `make chart`."""
    done = subprocess.run(
        [sys.executable, "-m", "charts.generate", "--check"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "services")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_engine_finds_nothing_to_complain_of() -> None:
    report = helm_python.lint(CHART, strict=True)
    assert report["errors"] == []
    assert [one for one in report["messages"] if one["severity"] > 1] == []


@pytest.mark.parametrize(
    "path", [CHART / "values.yaml", ROOT / "charts/schema.yaml"], ids=lambda path: path.name
)
def test_no_value_stands_twice_in_a_file_of_values(path: Path) -> None:
    """YAML takes the last of two keys and says nothing: what stands in the first would be lost."""
    waiting = [yaml.compose(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value]
            assert len(keys) == len(set(keys)), f"{node.start_mark}: {keys}"
            waiting += [value for _, value in node.value]


def test_every_value_has_a_meaning_and_every_default_is_allowed() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.validate(values, schema)
    table = (CHART / "README.md").read_text()
    told = {path for path in leaves(values) if f"| `{path}` |" in table}
    assert {path for path in leaves(values) if covered(path, told, table)} == set(leaves(values))


def leaves(values: dict[str, Any], path: str = "") -> list[str]:
    found = []
    for name, value in values.items():
        full = f"{path}{name}"
        found += leaves(value, f"{full}.") if isinstance(value, dict) and value else [full]
    return found


def covered(path: str, told: set[str], table: str) -> bool:
    """Told of itself, or as a part of what is told as a whole (resources, pools, …)."""
    parts = path.split(".")
    heads = [".".join(parts[:n]) for n in range(1, len(parts))]
    return path in told or any(f"| `{head}` |" in table for head in heads)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(values=VALUES, slots=SLOTS, variable=TEXT)
def test_whatever_is_given_arrives(
    chart: Render, values: dict[str, Any], slots: dict[str, int], variable: str
) -> None:
    queues = {"runs": 8, "system": 2, **slots}
    worker = {
        "pools": {"default": {"queues": queues}},
        "extraEnv": [{"name": "GIVEN", "value": variable}],
    }
    objects = chart({**values, "worker": worker})
    [config] = of_kind(objects, "ConfigMap").values()
    given_settings = values.get("settings", {})
    for name, value in given_settings.items():
        text = config["data"][f"RC_{name}"]
        assert text == value if isinstance(value, str) else float(text) == value
    for one in objects:
        assert values.get("commonLabels", {}).items() <= one["metadata"]["labels"].items()
        annotations = one["metadata"].get("annotations", {})
        assert values.get("commonAnnotations", {}).items() <= annotations.items()
    [told] = [
        environment(container)
        for owner, pod in pods(objects)
        if "-worker-default" in owner
        for container in containers(pod)
        if container["name"] == "worker"
    ]
    assert told["GIVEN"] == variable
    pairs = (pair.split("=") for pair in told["RC_WORKER_QUEUES"].split(","))
    assert {queue: int(n) for queue, n in pairs} == queues
