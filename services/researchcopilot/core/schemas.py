"""Kinds of values: each checks what came and says what it takes as JSON Schema, from one table.

A check never raises: it adds a fault with the path of what is wrong and returns None, so that a
caller is told everything at once. Integers are not booleans here, and text that Postgres refuses
(NUL, lone surrogates) is refused at the door. Kinds that stand in a query parse text first.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from researchcopilot.core.faults import Fault
from researchcopilot.core.ids import parse_id
from researchcopilot.core.text import forbidden_in

Schema = dict[str, Any]

_MOMENT = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_NAIVE = re.compile(r"\d{4}-\d\d-\d\d([Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?)?", re.ASCII)
_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,18}(\.\d{1,18})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Flaw:
    """What the parser puts in the place of a value that JSON allows and we do not."""

    message: str
    code: str = "invalid"


def json_type(value: Any) -> str:
    """How a person calls the type of a parsed JSON value."""
    names: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (bool, "a boolean"),
        ((int, float), "a number"),
        (str, "a string"),
        (list, "an array"),
        (dict, "an object"),
    )
    return next((name for types, name in names if isinstance(value, types)), "null")


def wrong_type(wanted: str, value: Any, where: str, faults: list[Fault]) -> None:
    if isinstance(value, Flaw):
        faults.append(Fault(where, value.message, value.code))
    else:
        faults.append(Fault(where, f"must be {wanted}, not {json_type(value)}", "wrong_type"))


class Kind:
    """What a field, a parameter or a part of an answer may hold."""

    def check(self, value: Any, where: str, faults: list[Fault]) -> Any:
        """The value as we use it; or None, and a fault more."""
        raise NotImplementedError

    def from_text(self, text: str, where: str, faults: list[Fault]) -> Any:
        """The same for a value that stands in a URL or a header."""
        return self.check(text, where, faults)

    def schema(self) -> Schema:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Text(Kind):
    low: int = 1
    high: int = 200

    def check(self, value: Any, where: str, faults: list[Fault]) -> Any:
        if not isinstance(value, str):
            return wrong_type("a string", value, where, faults)
        bad = forbidden_in(value)
        if bad:
            return faults.append(Fault(where, f"contains {bad}, which cannot be stored"))
        if not self.low <= len(value) <= self.high:
            message = f"must have {self.low} to {self.high} characters; it has {len(value)}"
            return faults.append(Fault(where, message))
        if self.low and not value.strip():
            return faults.append(Fault(where, "must not be blank"))
        return value

    def schema(self) -> Schema:
        return {"type": "string", "minLength": self.low, "maxLength": self.high}


@dataclass(frozen=True, slots=True)
class Choice(Kind):
    words: tuple[str, ...]

    def check(self, value: Any, where: str, faults: list[Fault]) -> Any:
        if isinstance(value, str) and value in self.words:
            return value
        if not isinstance(value, str):
            return wrong_type("a string", value, where, faults)
        message = f"must be one of {', '.join(self.words)}; it is {value[:50]!r}"
        return faults.append(Fault(where, message))

    def schema(self) -> Schema:
        return {"type": "string", "enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class Flag(Kind):
    def check(self, value: Any, where: str, faults: list[Fault]) -> Any:
        if not isinstance(value, bool):
            return wrong_type("a boolean", value, where, faults)
        return value

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Whole(Kind):
    low: int
    high: int

    def check(self, value: Any, where: str, faults: list[Fault]) -> Any:
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # 3.0 is an integer of JSON Schema
        if not isinstance(value, int) or isinstance(value, bool):
            return wrong_type("a whole number", value, where, faults)
        if not self.low <= value <= self.high:
            message = f"must be from {self.low} to {self.high}; it is {value}"
            return faults.append(Fault(where, message))
        return value

    def from_text(self, text: str, where: str, faults: list[Fault]) -> Any:
        if not _WHOLE.fullmatch(text):
            message = f"must be a whole number from {self.low} to {self.high}"
            return faults.append(Fault(where, message, "wrong_type"))
        return self.check(int(text), where, faults)

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Number(Kind):
    low: float
    high: float

    def check(self, value: Any, where: str, faults: list[Fault]) -> Any:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return wrong_type("a number", value, where, faults)
        if not self.low <= value <= self.high:
            message = f"must be from {self.low:.12g} to {self.high:.12g}; it is {value:.12g}"
            return faults.append(Fault(where, message))
        return float(value)

    def from_text(self, text: str, where: str, faults: list[Fault]) -> Any:
        if not _NUMBER.fullmatch(text):
            message = f"must be a number from {self.low:.12g} to {self.high:.12g}"
            return faults.append(Fault(where, message, "wrong_type"))
        return self.check(float(text), where, faults)

    def schema(self) -> Schema:
        return {"type": "number", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Id(Kind):
    def check(self, value: Any, where: str, faults: list[Fault]) -> Any:
        if not isinstance(value, str):
            return wrong_type("a UUID", value, where, faults)
        found = parse_id(value)
        if found is None:
            message = "must be a UUID, like 01890a5d-ac96-774b-bcce-b302099a8057"
            faults.append(Fault(where, message))
        return found

    def schema(self) -> Schema:
        return {"type": "string", "format": "uuid"}


@dataclass(frozen=True, slots=True)
class Moment(Kind):
    """A time with its zone (RFC 3339); comes out in UTC."""

    def check(self, value: Any, where: str, faults: list[Fault]) -> Any:
        if not isinstance(value, str):
            return wrong_type("a time like 2026-01-31T08:00:00Z", value, where, faults)
        try:
            if _MOMENT.fullmatch(value):
                return datetime.fromisoformat(value.upper()).astimezone(UTC)
        except (ValueError, OverflowError):
            pass
        return faults.append(Fault(where, self._why(value)))

    @staticmethod
    def _why(text: str) -> str:
        if _MOMENT.fullmatch(text[:-6] + "+" + text[-5:]) and text[-6:-5] == " ":
            return "has a space where a + stood: in a URL write it as %2B, or use Z"
        if _NAIVE.fullmatch(text):
            return "needs a time and its zone, like 2026-01-31T08:00:00Z"
        return "must be a time like 2026-01-31T08:00:00Z or 2026-01-31T08:00:00+08:00"

    def schema(self) -> Schema:
        return {"type": "string", "format": "date-time"}


@dataclass(frozen=True, slots=True)
class Pairs(Kind):
    """A flat object of strings."""

    most: int
    key: int
    value: int

    def check(self, value: Any, where: str, faults: list[Fault]) -> Any:
        if not isinstance(value, dict):
            return wrong_type("an object of strings", value, where, faults)
        if len(value) > self.most:
            message = f"must have at most {self.most} pairs; it has {len(value)}"
            return faults.append(Fault(where, message))
        before = len(faults)
        name, text = Text(1, self.key), Text(0, self.value)
        for key, item in value.items():
            if name.check(key, f"{where} (a key)", faults) is not None:
                text.check(item, f"{where}.{key}", faults)
        return value if len(faults) == before else None

    def schema(self) -> Schema:
        return {
            "type": "object",
            "maxProperties": self.most,
            "propertyNames": {"minLength": 1, "maxLength": self.key},
            "additionalProperties": {"type": "string", "maxLength": self.value},
        }


@dataclass(frozen=True, slots=True)
class Json(Kind):
    """Any JSON value but null and blank text, nested at most `depth` levels deep."""

    depth: int = 32

    def check(self, value: Any, where: str, faults: list[Fault]) -> Any:
        if isinstance(value, str) and not value.strip():
            return faults.append(Fault(where, "must not be empty", "empty"))
        # Level by level, without recursion; where it is, is only asked once something is wrong.
        level: Sequence[Any] = (value,)
        for _ in range(self.depth + 1):
            if any(_bad_node(node) for node in level):
                break
            if not any(isinstance(node, dict | list) for node in level):
                return value
            level = [child for node in level for child in _children(node)]
        return faults.append(_first_fault(value, where, self.depth))

    def schema(self) -> Schema:
        return {"not": {"type": "null"}}


def _children(node: Any) -> Sequence[Any]:
    if isinstance(node, dict):
        return tuple(node.values())
    return node if isinstance(node, list) else ()


def _bad_node(node: Any) -> bool:
    if isinstance(node, str):
        return forbidden_in(node) is not None
    if isinstance(node, dict):
        return any(forbidden_in(key) for key in node)
    return isinstance(node, Flaw)


def _first_fault(value: Any, where: str, depth: int) -> Fault:
    level: list[tuple[str, Any]] = [(where, value)]
    for _ in range(depth + 1):
        for path, node in level:
            if isinstance(node, Flaw):
                return Fault(path, node.message, node.code)
            for text in (
                (node,) if isinstance(node, str) else node if isinstance(node, dict) else ()
            ):
                if bad := forbidden_in(text):
                    return Fault(path, f"contains {bad}, which cannot be stored")
        level = [
            (f"{path}.{key}", child)
            for path, node in level
            if isinstance(node, dict)
            for key, child in node.items()
        ] + [
            (f"{path}[{index}]", child)
            for path, node in level
            if isinstance(node, list)
            for index, child in enumerate(node)
        ]
    return Fault(where, f"is nested deeper than {depth} levels", "too_deep")
