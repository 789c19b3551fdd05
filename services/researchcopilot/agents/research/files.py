"""Index files between a folder and the database: in pieces that are named by their SHA-256.

One piece is in memory at a time, and is read, hashed and written in a thread.
"""

import asyncio
import hashlib
import os
from collections.abc import Collection
from pathlib import Path

from researchcopilot.core.errors import RetryLater
from researchcopilot.storage import indexes
from researchcopilot.storage.db import Database
from researchcopilot.storage.indexes import BLOB_BYTES, Files


def manifest(files: Files) -> str:
    """A name for exactly these files: the same in every database, another for any change."""
    lines = (f"{name} {' '.join(parts)}\n" for name, parts in sorted(files.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:32]


def describe(folder: Path) -> dict[str, tuple[str, ...]]:
    """The files of an index folder with the hashes of their pieces; lock files are left out."""
    paths = sorted(path for path in folder.iterdir() if not path.name.endswith(".lock"))
    return {
        path.name: tuple(
            _hash(_piece(path, number)) for number in range(-(-path.stat().st_size // BLOB_BYTES))
        )
        for path in paths
    }


async def upload(db: Database, folder: Path, files: Files, *, whole: bool) -> int:
    """Store the pieces that are not there yet, or the whole lot; how many that were."""
    wanted = {sha256 for parts in files.values() for sha256 in parts}
    there = set() if whole else await indexes.touch(db, wanted)
    return sum([await _upload_file(db, folder / name, files[name], there) for name in files])


async def _upload_file(
    db: Database, path: Path, parts: tuple[str, ...], there: Collection[str]
) -> int:
    missing = [(number, sha256) for number, sha256 in enumerate(parts) if sha256 not in there]
    for number, sha256 in missing:
        await indexes.put_blob(db, sha256, await asyncio.to_thread(_piece, path, number))
    return len(missing)


async def download(db: Database, files: Files, folder: Path) -> None:
    """Write the files into an empty folder, down to the disk. A piece that is gone or does not
    have its hash raises RetryLater: the next attempt reads a version that is whole."""
    for name, parts in files.items():
        for sha256 in parts:
            data = await indexes.get_blob(db, sha256)
            if data is None or not await asyncio.to_thread(_append, folder / name, sha256, data):
                state = "gone" if data is None else "damaged"
                raise RetryLater(f"Piece {sha256} of index file {name} is {state}.", after=2.0)
        await asyncio.to_thread(_sync, folder / name)


def _piece(path: Path, number: int) -> bytes:
    with path.open("rb") as file:
        file.seek(number * BLOB_BYTES)
        return file.read(BLOB_BYTES)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _append(path: Path, sha256: str, data: bytes) -> bool:
    if _hash(data) != sha256:
        return False
    with path.open("ab") as file:
        file.write(data)
    return True


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
