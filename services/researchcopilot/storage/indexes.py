"""Index versions in Postgres: which documents one holds, and its files in pieces.

A version is published in one statement on top of the one it was built from, or not at all. Pieces
are named by their content, so two versions share what did not change. Nothing that is read or
about to be named is deleted: a run holds the version it pins, a version's rows refer to its blobs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from psycopg import errors

from researchcopilot.core.errors import LostClaim, LostLock, Unavailable
from researchcopilot.core.models import Claim
from researchcopilot.storage.db import Database
from researchcopilot.storage.keeper import Held
from researchcopilot.storage.lock import check_fence
from researchcopilot.storage.sql import load

_SQL = load("indexes")

BLOB_BYTES = 8_388_608
KEEP = 3
IDLE_S = 3600.0
_SWEEP = 100
_PIN_TRIES = 10

# file name → SHA-256 of its pieces, in order
Files = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class IndexVersion:
    """A published version. `format` is that of its tokens and fields."""

    version: int
    format: int
    document_ids: frozenset[str]
    chunks: int


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A version to publish on top of `built_from` (0: there was none)."""

    built_from: int
    format: int
    document_ids: frozenset[str]
    chunks: int
    files: Files


@dataclass(frozen=True, slots=True)
class Pruned:
    versions: int
    blobs: int


class BlobsMissing(Exception):
    """Blobs of the version were swept before it was published; put them again."""


async def latest(db: Database, workspace_id: int) -> IndexVersion | None:
    """The newest version of a workspace."""
    row = await db.one(_SQL["latest"], {"workspace_id": workspace_id})
    if row is None:
        return None
    return IndexVersion(
        row["version"], row["format"], frozenset(row["document_ids"]), row["chunks"]
    )


async def files_of(db: Database, workspace_id: int, version: int) -> tuple[int, Files] | None:
    """(format, files) of a version; None if it was pruned."""
    rows = await db.rows(_SQL["files"], {"workspace_id": workspace_id, "version": version})
    if not rows:
        return None
    return rows[0][0], {name: tuple(parts) for _, name, parts in rows if name is not None}


async def pin(db: Database, claim: Claim) -> int | None:
    """The version that this run reads from its first use to its end; None without any index.

    Raises LostClaim if the run is another worker's by now.
    """
    key = {
        "run_id": claim.run_id,
        "claim_no": claim.claim_no,
        "worker_id": claim.worker_id,
        "workspace_id": claim.workspace_id,
    }
    for _ in range(_PIN_TRIES):
        if (row := await db.one(_SQL["pin"], key)) is not None:
            return int(row["index_version"])
        row = await db.one(_SQL["pinned"], key)
        if row is None or not row["mine"]:
            raise LostClaim(f"Run {claim.run_id} is no longer held by this worker.")
        pinned: int | None = row["index_version"]
        if pinned is not None or not row["any_version"]:
            return pinned
    raise Unavailable(f"Index versions of workspace {claim.workspace_id} change too fast to pin.")


async def touch(db: Database, hashes: Collection[str]) -> set[str]:
    """Which blobs are there already, kept from the sweep for a while."""
    return {row[0] for row in await db.rows(_SQL["touch"], {"hashes": sorted(hashes)})}


async def put_blob(db: Database, sha256: str, data: bytes) -> None:
    """Store one piece; safe twice. What was there under this name and damaged is mended."""
    await db.execute(_SQL["put"], {"sha256": sha256, "data": data})


async def get_blob(db: Database, sha256: str) -> bytes | None:
    async with db.connection() as connection, connection.cursor(binary=True) as cursor:
        await cursor.execute(_SQL["blob"], {"sha256": sha256})
        row = await cursor.fetchone()
    return None if row is None else bytes(row[0])


async def publish(
    db: Database, workspace_id: int, new: NewVersion, held: Held | None = None
) -> int | None:
    """The new version's number, or None if another builder was faster, or has taken the lock that
    we `held` (with a fence) while we built.

    Raises BlobsMissing if a piece is not there: put them again, then publish again.
    """
    pieces = [
        (name, part, sha256)
        for name, parts in sorted(new.files.items())
        for part, sha256 in enumerate(parts)
    ]
    params = {
        "workspace_id": workspace_id,
        "built_from": new.built_from,
        "format": new.format,
        "document_ids": sorted(new.document_ids),
        "chunks": new.chunks,
        "names": [piece[0] for piece in pieces],
        "parts": [piece[1] for piece in pieces],
        "hashes": [piece[2] for piece in pieces],
    }
    async with db.transaction() as connection:
        await connection.execute(_SQL["publish_lock"], {"workspace_id": workspace_id})
        try:
            if held is not None:
                await check_fence(connection, held)
            cursor = await connection.execute(_SQL["publish"], params)
        except errors.ForeignKeyViolation as error:
            raise BlobsMissing(str(error)) from error
        except LostLock:
            return None
        row = await cursor.fetchone()
    return None if row is None else int(row[0])


async def prune(
    db: Database, workspace_id: int, *, keep: int = KEEP, idle_s: float = IDLE_S
) -> Pruned:
    """Delete versions but the newest few and those that live runs read; then blobs that no
    version of any workspace names and that no builder has wanted for `idle_s`."""
    async with db.transaction() as connection:
        key = {"workspace_id": workspace_id, "keep": keep}
        cursor = await connection.execute(_SQL["old_versions"], key)
        old = [row[0] for row in await cursor.fetchall()]
        cursor = await connection.execute(
            _SQL["prune_versions"], {"workspace_id": workspace_id, "versions": old}
        )
        versions = cursor.rowcount
    async with db.transaction() as connection:
        cursor = await connection.execute(_SQL["idle_blobs"], {"idle_s": idle_s, "limit": _SWEEP})
        idle = [row[0] for row in await cursor.fetchall()]
        cursor = await connection.execute(_SQL["sweep_blobs"], {"hashes": idle})
        blobs = cursor.rowcount
    return Pruned(versions, blobs)


def split(data: bytes) -> Sequence[bytes]:
    """The pieces that a file is stored in; an empty file has none."""
    return [data[at : at + BLOB_BYTES] for at in range(0, len(data), BLOB_BYTES)]
