"""Bodies of fields: what may be asked for, as one table that checks it and says it as JSON Schema.

Pure. Whatever is asked for passes here, over HTTP or as a Kubernetes object, so that both are held
to the same bounds and are refused in the same words.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from researchcopilot.core.faults import Fault
from researchcopilot.core.schemas import Kind, Schema, wrong_type

# More faults than anybody is shown are only counted: a body has room for a million fields that do
# not exist, and looking for what each might have meant takes seconds.
HINTED = 50


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a body. null is the same as leaving it out."""

    name: str
    kind: Kind
    doc: str
    required: bool = False
    default: Any = None

    def schema(self) -> Schema:
        schema = {"description": self.doc, **self.kind.schema()}
        if self.default is not None:
            schema["default"] = self.default
        if not self.required and "type" in schema:
            schema["type"] = [schema["type"], "null"]
            if "enum" in schema:
                schema["enum"] = [*schema["enum"], None]
        return schema


class Body(Kind):
    """An object with exactly these fields."""

    def __init__(self, name: str, fields: Iterable[Field]) -> None:
        self.name = name
        self.fields = {field.name: field for field in fields}

    def check(self, value: Any, where: str, faults: list[Fault]) -> Any:
        if not isinstance(value, dict):
            return wrong_type("an object", value, where, faults)
        before = len(faults)
        if not value.keys() <= self.fields.keys():
            for key in value:
                if key not in self.fields:
                    faults.append(self._unknown(key, where, hinted=len(faults) < HINTED))
        checked = {}
        for name, field in self.fields.items():
            given = value.get(name)
            if given is not None:
                checked[name] = field.kind.check(given, f"{where}.{name}", faults)
            elif field.required:
                faults.append(Fault(f"{where}.{name}", "is required", "required"))
            else:
                checked[name] = field.default
        return checked if len(faults) == before else None

    def _unknown(self, key: str, where: str, *, hinted: bool) -> Fault:
        if not hinted:
            return Fault(where, "has another field that does not exist here", "unknown_field")
        close = difflib.get_close_matches(key[:100], self.fields, n=1)
        hint = f"did you mean {close[0]}?" if close else f"fields are {', '.join(self.fields)}"
        return Fault(f"{where}.{key}", f"is not a field here; {hint}", "unknown_field")

    def schema(self) -> Schema:
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {name: field.schema() for name, field in self.fields.items()},
            "required": [name for name, field in self.fields.items() if field.required],
        }


@dataclass(frozen=True, slots=True)
class ListOf(Kind):
    item: Body
    low: int
    high: int

    def check(self, value: Any, where: str, faults: list[Fault]) -> Any:
        if not isinstance(value, list):
            return wrong_type("an array", value, where, faults)
        if not self.low <= len(value) <= self.high:
            message = f"must have {self.low} to {self.high} items; it has {len(value)}"
            return faults.append(Fault(where, message))
        return [
            self.item.check(item, f"{where}[{index}]", faults) for index, item in enumerate(value)
        ]

    def schema(self) -> Schema:
        return {
            "type": "array",
            "minItems": self.low,
            "maxItems": self.high,
            "items": {"$ref": f"#/components/schemas/{self.item.name}"},
        }
