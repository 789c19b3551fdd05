"""Named SQL: `load("runs")` reads runs.sql, where each query starts with `-- name: verb`."""

import re
from collections.abc import Mapping
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+).*$", re.MULTILINE)


def load(name: str) -> Mapping[str, bytes]:
    """The queries of one file by name. Bytes, so that no query can be glued from strings."""
    return named((files(__package__) / f"{name}.sql").read_text(encoding="utf-8"))


def named(text: str) -> Mapping[str, bytes]:
    parts = _NAME.split(text)[1:]
    return {verb: body.strip().encode() for verb, body in zip(parts[::2], parts[1::2], strict=True)}
