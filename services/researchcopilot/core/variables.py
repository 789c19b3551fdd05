"""One variable of the environment: its name, and how its text becomes a value.

A parser raises ValueError with what would be right; whoever reads the environment says which
variable it was.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

PREFIX = "RC_"


def text(value: str) -> str:
    return value


def url(*schemes: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if not value.startswith(tuple(f"{scheme}://" for scheme in schemes)):
            raise ValueError(f"a URL that starts with {' or '.join(s + '://' for s in schemes)}")
        return value

    return parse


def whole(low: int, high: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not (value.isascii() and value.isdigit() and low <= int(value) <= high):
            raise ValueError(f"a whole number from {low} to {high}")
        return int(value)

    return parse


def number(low: float, high: float, unit: str) -> Callable[[str], float]:
    def parse(value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not low <= number <= high:
            raise ValueError(f"{unit} from {low:g} to {high:g}")
        return number

    return parse


def seconds(low: float, high: float) -> Callable[[str], float]:
    return number(low, high, "seconds")


def choice(*words: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return value

    return parse


def switch(value: str) -> bool:
    if value not in ("true", "false"):
        raise ValueError("true or false")
    return value == "true"


def plain_name(value: str) -> str:
    """What a workspace may be called."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", value, re.ASCII):
        raise ValueError("1 to 63 of a-z, 0-9 and -, and no - first")
    return value


def parse_queues(value: str) -> dict[str, int]:
    """`runs=8,system=2` → {"runs": 8, "system": 2}."""
    queues: dict[str, int] = {}
    for part in value.split(","):
        name, _, slots = part.strip().partition("=")
        good_name = name.replace("-", "").replace("_", "").isalnum() and name.isascii()
        if (
            not (good_name and slots.isascii() and slots.isdigit() and 1 <= int(slots) <= 1000)
            or name in queues
        ):
            raise ValueError("queues with 1 to 1000 slots each, like runs=8,system=2")
        queues[name] = int(slots)
    return queues


def setting(name: str, default: Any, parse: Callable[[str], Any], doc: str) -> Any:
    metadata = {"name": PREFIX + name, "parse": parse, "doc": doc}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)
