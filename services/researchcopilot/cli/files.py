"""The files that `corpus add` is pointed at: found, named, read. One bad file stops no other.

A file that is named alone takes its own name; one found in a folder takes its path from there, so
that the same call made again finds the same documents.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from researchcopilot.core.documents import (
    MEDIA_TYPES,
    NewDocument,
    check_size,
    media_type_of,
    read_document,
)
from researchcopilot.core.errors import BadInput


@dataclass(frozen=True, slots=True)
class Found:
    """A file and the name that it takes in the corpus; `refused` if it cannot be read at all."""

    path: Path
    name: str
    refused: str = ""


def find(paths: Iterable[Path]) -> list[Found]:
    """The documents at these paths, folders walked in order. What a folder holds besides Markdown
    and text is passed over; a file that was named is not: it is refused when it is read."""
    found: list[Found] = []
    by_name: dict[str, Path] = {}
    for one in (each for path in paths for each in _at(path)):
        first = by_name.setdefault(one.name, one.path)
        if not one.refused and first.resolve() != one.path.resolve():
            reason = (
                f"{one.path}: {first} takes the name {one.name} already; "
                "name the folder that holds both."
            )
            found.append(Found(one.path, one.name, reason))
        elif first is one.path or one.refused:
            found.append(one)
    return found


def _at(path: Path) -> Iterator[Found]:
    if path.is_dir():
        yield from _in(path)
    elif path.is_file():
        yield Found(path, path.name)
    elif path.exists():
        yield Found(path, path.name, f"{path} is neither a file nor a folder.")
    else:
        yield Found(path, path.name, f"{path}: there is no such file or folder.")


def _in(folder: Path) -> Iterator[Found]:
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(where, name)
            if path.suffix.lower() in MEDIA_TYPES and not name.startswith("."):
                yield Found(path, path.relative_to(folder).as_posix())


def read(file: Found, *, max_bytes: int) -> NewDocument:
    """The document in a file. Raises BadInput with a sentence for its owner."""
    if file.refused:
        raise BadInput(file.refused)
    media_type_of(file.name)
    try:
        # A huge file is refused without being read.
        check_size(file.name, file.path.stat().st_size, max_bytes=max_bytes)
        data = file.path.read_bytes()
    except OSError as error:
        raise BadInput(f"{file.path} cannot be read: {error.strerror or error}.") from error
    return read_document(file.name, data, max_bytes=max_bytes)
