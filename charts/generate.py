"""Makes what is derived: values.schema.json, the table in the chart's README, files/schema (which
migrations this version knows), files/dashboard.json, and the plain manifests of k8s/plain.

    python -m charts.generate           writes them
    python -m charts.generate --check   only says what is stale; exit code 1 then
"""

import copy
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml
from charts import dashboard

from researchcopilot.core.settings import describe
from researchcopilot.storage.migrate import migrations

CHARTS = Path(__file__).parent
CHART = CHARTS / "researchcopilot"
VALUES_SCHEMA = CHART / "values.schema.json"
K8S = CHARTS.parent / "k8s/plain"
# What the chart sets itself, from values of their own.
OURS = {
    "DATABASE_URL", "REDIS_URL", "HEALTH_HOST", "HEALTH_PORT", "HEALTH_PORT_FILE", "API_HOST",
    "API_PORT", "WORKER_QUEUES", "DRAIN_SECONDS", "CACHE_DIR", "POD_NAME", "POD_UID",
    "POD_NAMESPACE", "OPERATOR_NAMESPACE", "OPERATOR_SELECTOR", "OPERATOR_CONTAINER",
    "OPERATOR_CUSTOM_RESOURCES", "OPERATOR_CLUSTER_WIDE", "OPERATOR_DELETION_COST",
}  # fmt: skip
PLAIN = {"string", "boolean", "integer", "number"}
BEGIN, END = "<!-- values -->", "<!-- end -->"
Schema = dict[str, Any]


class Shapes:
    """Turns schema.yaml into a JSON schema whose shared shapes stand once, under `definitions`."""

    def __init__(self, source: Mapping[str, Any]) -> None:
        self._shapes: Mapping[str, Any] = source["$shapes"]
        self._groups: Mapping[str, Any] = source["$groups"]
        self.definitions: Schema = {"settings": settings_schema(), "pools": pools_schema()}
        self.definitions |= copy.deepcopy(dict(self._shapes))
        self.definitions |= {name: self.closed(group) for name, group in self._groups.items()}

    def closed(self, group: Mapping[str, Any]) -> Schema:
        members = self.members(group)
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {name: self.value(entry) for name, entry in members.items()},
        }

    def members(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """With those of what it extends, its own first."""
        own = {name: entry for name, entry in group.items() if name != "$extends"}
        base = self._groups[group["$extends"]] if "$extends" in group else {}
        return own | (self.members(base) if base else {})

    def value(self, entry: Any) -> Schema:
        if isinstance(entry, dict):
            return self.closed(entry)
        shape, meaning = entry[0], entry[1]
        if isinstance(shape, dict):
            return {**shape, "description": meaning}
        if shape in PLAIN:
            return {"type": shape, "description": meaning}
        return {"description": meaning, "allOf": [{"$ref": f"#/definitions/{shape}"}]}


def settings_schema() -> Schema:
    known = {
        name.removeprefix("RC_"): {"type": ["string", "number"], "description": doc}
        for name, _, doc in describe()
        if name.removeprefix("RC_") not in OURS
    }
    return {"type": "object", "additionalProperties": False, "properties": known}


def pools_schema() -> Schema:
    return {
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": "^[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?$"},
        "additionalProperties": {"$ref": "#/definitions/pool"},
    }


def schema(source: Mapping[str, Any]) -> Schema:
    shapes = Shapes(source)
    whole = shapes.closed(source["values"])
    # Helm itself looks at `global`, and a parent chart may put more into it.
    whole["properties"]["global"]["additionalProperties"] = True
    title = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "ResearchCopilot"}
    return {**title, **whole, "definitions": shapes.definitions}


def rows(
    shapes: Shapes, group: Mapping[str, Any], defaults: Any, path: str = ""
) -> Iterator[tuple[str, str, str]]:
    """(value, default, meaning) for the table."""
    for name, entry in shapes.members(group).items():
        full = f"{path}{name}"
        default = defaults.get(name) if isinstance(defaults, dict) else None
        if isinstance(entry, dict):
            yield from rows(shapes, entry, default, f"{full}.")
            continue
        shape, meaning = entry
        nested = shapes._groups.get(shape) if isinstance(shape, str) else None
        if nested and shape != "image":
            yield from rows(shapes, nested, default, f"{full}.")
        else:
            yield full, shown(default), meaning


def shown(value: Any) -> str:
    return "" if value in (None, "", {}, []) else f"`{json.dumps(value, ensure_ascii=False)}`"


def table(source: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    lines = ["| Value | Default | Meaning |", "|---|---|---|"]
    for name, default, meaning in rows(Shapes(source), source["values"], defaults):
        cells = (cell.replace("|", "\\|") for cell in (f"`{name}`", default, meaning))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def readme(text: str, made: str) -> str:
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}"


def schema_mark() -> str:
    """Changes with what `migrate --phase pre` would bring."""
    known = [(migration.name, migration.sha256) for migration in migrations(("pre",))]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:12]


def plain() -> str:
    """The chart as manifests that Helm has no part in."""
    values = yaml.safe_load((K8S / "values.yaml").read_text())
    chart = helm_python.Chart.load(CHART)
    found = chart.render(values, name="researchcopilot", namespace="researchcopilot")
    objects = [
        one
        for name, text in sorted(found.items())
        if name.endswith(".yaml")
        for one in yaml.safe_load_all(text)
        if one
    ]
    for one in objects:
        one["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "kustomize"
        del one["metadata"]["labels"]["helm.sh/chart"]
        one["metadata"].pop("namespace", None)  # what belongs to the cluster has none
    head = "# Made from the chart by `make chart`: change the chart, or put an overlay upon this.\n"
    return head + yaml.safe_dump_all(objects, sort_keys=False, width=100)


def values_source() -> Any:
    return yaml.safe_load((CHARTS / "schema.yaml").read_text())


def schema_text(source: Mapping[str, Any]) -> str:
    return json.dumps(schema(source), indent=1, ensure_ascii=False) + "\n"


def outputs() -> dict[Path, str]:
    source = values_source()
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    page = CHART / "README.md"
    return {
        VALUES_SCHEMA: schema_text(source),
        page: readme(page.read_text(), table(source, defaults)),
        CHART / "files/schema": schema_mark() + "\n",
        K8S / "manifests.yaml": plain(),
        CHART / "files/dashboard.json": json.dumps(dashboard.dashboard(), indent=1) + "\n",
    }


def stale() -> dict[Path, str]:
    return {p: text for p, text in outputs().items() if not p.exists() or p.read_text() != text}


def write(path: Path, text: str) -> None:
    path.write_text(text)
    print(f"wrote {path.relative_to(CHARTS.parent)}")


def main(argv: list[str]) -> int:
    if "--check" in argv:
        found = stale()
        for path in found:
            print(f"{path.relative_to(CHARTS.parent)} is stale: run `make chart`", file=sys.stderr)
        return 1 if found else 0
    # The chart is rendered with its schema, so that comes first.
    write(VALUES_SCHEMA, schema_text(values_source()))
    while found := stale():  # what is made first may be part of what is made later
        for path, text in found.items():
            write(path, text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
