"""What an API server does with an object of ours before it is stored: unknown fields are pruned,
defaults put in, the schema and its CEL rules asked. Read from the chart, so that what is tested is
what is installed.

The rules are really evaluated (celpy), the bounds are checked by jsonschema; not looked at here is
what only a cluster knows, such as the cost of a rule.
"""

import copy
import uuid
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from typing import Any

import celpy
import celpy.adapter
import celpy.celtypes
import jsonschema
from tests.chart.engine import load, of_kind, render

Json = dict[str, Any]
KEPT = "x-kubernetes-preserve-unknown-fields"
RULES = "x-kubernetes-validations"
formats = jsonschema.FormatChecker(formats=())
_programs: dict[str, Any] = {}


@formats.checks("date-time", raises=ValueError)
def _is_moment(value: object) -> bool:
    return not isinstance(value, str) or datetime.fromisoformat(value).tzinfo is not None


@formats.checks("uuid", raises=ValueError)
def _is_uuid(value: object) -> bool:
    return not isinstance(value, str) or bool(uuid.UUID(value))


@cache
def crds() -> dict[str, Json]:
    """Plural → the CRD as the chart installs it."""
    objects = render(load(), {"operator": {"enabled": True}})
    found = of_kind(objects, "CustomResourceDefinition").values()
    return {one["spec"]["names"]["plural"]: one for one in found}


def schema_of(plural: str) -> Json:
    [version] = crds()[plural]["spec"]["versions"]
    found: Json = version["schema"]["openAPIV3Schema"]
    return found


def admitted(plural: str, body: Json) -> tuple[Json, list[str]]:
    """The object as it would be stored, and why it is not."""
    schema = schema_of(plural)
    kept = pruned(schema, copy.deepcopy(body), top=True)
    put_defaults(schema, kept)
    validator = jsonschema.Draft202012Validator(schema, format_checker=formats)
    wrong = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(kept)]
    # As in Kubernetes, rules are only asked of what has the right shape.
    return kept, wrong or list(broken_rules(schema, kept))


def pruned(schema: Json, value: Any, *, top: bool = False) -> Any:
    if isinstance(value, list):
        return [pruned(schema.get("items", {}), item) for item in value]
    if not isinstance(value, dict) or schema.get(KEPT):
        return value
    known = schema.get("properties", {})
    more = schema.get("additionalProperties")
    return {
        name: item if top and name == "metadata" else pruned(known.get(name) or more or {}, item)
        for name, item in value.items()
        if name in known or more
    }


def put_defaults(schema: Json, value: Any) -> None:
    if not isinstance(value, dict):
        return
    for name, inner in schema.get("properties", {}).items():
        if "default" in inner:
            value.setdefault(name, inner["default"])
        put_defaults(inner, value.get(name))


def broken_rules(schema: Json, value: Any, path: str = "$") -> Iterator[str]:
    for rule in schema.get(RULES, ()):
        if not holds(rule["rule"], cel(schema, value)):
            yield f"{path}: {rule['message']}"
    if isinstance(value, dict):
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                yield from broken_rules(inner, value[name], f"{path}.{name}")


def holds(rule: str, value: Any) -> bool:
    if rule not in _programs:
        environment = celpy.Environment()
        _programs[rule] = environment.program(environment.compile(rule))
    return bool(_programs[rule].evaluate({"self": value}))


def cel(schema: Json, value: Any) -> Any:
    """A value as CEL sees it: what is a time to the schema is a time; what has no type is not
    there for a rule."""
    if schema.get("format") == "date-time":
        return celpy.celtypes.TimestampType(value)
    if isinstance(value, dict):
        known, more = schema.get("properties", {}), schema.get("additionalProperties", {})
        return celpy.celtypes.MapType(
            {
                celpy.celtypes.StringType(name): cel(known.get(name, more), item)
                for name, item in value.items()
                if name not in known or "type" in known[name]
            }
        )
    return celpy.adapter.json_to_cel(value)
