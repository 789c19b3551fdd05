"""Documents in Postgres: a workspace has at most one active document of a name, and of a text.

A new text of a name replaces: the old row is retired and kept, since answers cite it, and the new
one gets an id of its own. So a row's text never changes, and "which documents" says "which texts":
the index is built by the difference of ids.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from psycopg import errors

from researchcopilot.core.backoff import reconnect_delays
from researchcopilot.core.documents import AddedDocument, Document, DocumentInfo, NewDocument
from researchcopilot.core.errors import NotFound
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import NewRun
from researchcopilot.storage.db import Database, TryAgain
from researchcopilot.storage.sql import load

_SQL = load("documents")
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Active:
    """An active document of the workspace, as far as a batch can meet it."""

    document_id: str
    name: str
    sha256: str


@dataclass(slots=True)
class Changes:
    """What a batch does: `added` by name, `insert` with the new ids."""

    added: dict[str, AddedDocument] = field(default_factory=dict)
    retire: list[str] = field(default_factory=list)
    insert: list[tuple[str, NewDocument]] = field(default_factory=list)


async def add_documents(
    db: Database, workspace_id: int, documents: Sequence[NewDocument]
) -> list[AddedDocument]:
    """Add all documents or none; one result for each, in order. Safe twice and at once.

    Of several texts under one name the last counts, and is what all of them are told about.
    A name that is there with another text is replaced. A text that is there under another name is
    a duplicate: it is not stored again, but what the name held before is retired all the same.
    Raises NotFound for a workspace that does not exist.
    """
    for attempt, delay in enumerate(reconnect_delays(), start=1):
        try:
            return await _add(db, workspace_id, documents)
        except (TryAgain, errors.UniqueViolation):
            # The lock makes this rare and the unique indexes make it safe: whoever comes second
            # decides again on what the first has left.
            if attempt == _TRIES:
                raise
        await asyncio.sleep(delay)
    raise AssertionError("the delays are endless")


async def _add(
    db: Database, workspace_id: int, documents: Sequence[NewDocument]
) -> list[AddedDocument]:
    last = {document.name: document for document in documents}
    async with db.transaction() as connection:
        await connection.execute(_SQL["lock"], {"workspace_id": workspace_id})
        cursor = await connection.execute(
            _SQL["active_like"],
            {
                "workspace_id": workspace_id,
                "names": list(last),
                "hashes": [document.sha256 for document in last.values()],
            },
        )
        changes = decide([Active(*row) for row in await cursor.fetchall()], list(last.values()))
        await connection.execute(_SQL["retire"], {"document_ids": changes.retire})
        rows = [_row(workspace_id, *new) for new in changes.insert]
        try:
            async with connection.cursor() as inserting:
                await inserting.executemany(_SQL["insert"], rows)
        except errors.ForeignKeyViolation:
            raise NotFound(f"There is no workspace {workspace_id}.") from None
    return [changes.added[document.name] for document in documents]


def _row(workspace_id: int, document_id: str, document: NewDocument) -> dict[str, object]:
    return {
        "document_id": document_id,
        "workspace_id": workspace_id,
        "name": document.name,
        "title": document.title,
        "media_type": document.media_type,
        "sha256": document.sha256,
        "body": document.body,
        "bytes": document.bytes,
    }


def decide(active: Sequence[Active], batch: Sequence[NewDocument]) -> Changes:
    """What a batch without repeated names does to the active documents it meets.

    The whole batch is looked at first, so that two files which swap their texts both survive.
    """
    changes = Changes()
    before = {document.name: document for document in active}
    names = {document.name for document in batch}
    unchanged = {
        document.name
        for document in batch
        if document.name in before and before[document.name].sha256 == document.sha256
    }
    holders = {
        document.sha256: document
        for document in active
        if document.name not in names or document.name in unchanged
    }
    for document in batch:
        old = before.get(document.name)
        if document.name in unchanged:
            added = AddedDocument(document.name, before[document.name].document_id, "unchanged")
        elif (holder := holders.get(document.sha256)) is not None:
            added = AddedDocument(document.name, holder.document_id, "duplicate", holder.name)
        else:
            document_id = new_id()
            holders[document.sha256] = Active(document_id, document.name, document.sha256)
            changes.insert.append((document_id, document))
            added = AddedDocument(document.name, document_id, "replaced" if old else "added")
        if old is not None and document.name not in unchanged:
            changes.retire.append(old.document_id)
        changes.added[document.name] = added
    return changes


async def list_documents(
    db: Database, workspace_id: int, *, after: str | None = None, limit: int = 100
) -> list[DocumentInfo]:
    """Active documents by name, those after the name `after`."""
    rows = await db.dicts(
        _SQL["list"], {"workspace_id": workspace_id, "after": after, "limit": limit}
    )
    return [DocumentInfo(**row) for row in rows]


async def get_document(db: Database, workspace_id: int, document_id: str) -> Document | None:
    """One document with its text, also one that was replaced; None if there is none here."""
    row = await db.one(_SQL["get"], {"workspace_id": workspace_id, "document_id": document_id})
    return None if row is None else Document(**row)


async def active_documents(db: Database, workspace_id: int) -> dict[str, int]:
    """The ids of the active documents, sorted, with their sizes in bytes."""
    rows = await db.rows(_SQL["active"], {"workspace_id": workspace_id})
    return {document_id: size for document_id, size in rows}


async def get_documents(
    db: Database, workspace_id: int, document_ids: Sequence[str]
) -> list[Document]:
    """Several documents with their texts, sorted by id."""
    rows = await db.dicts(
        _SQL["by_ids"], {"workspace_id": workspace_id, "document_ids": list(document_ids)}
    )
    return [Document(**row) for row in rows]


def rebuild_run(workspace_id: int) -> NewRun:
    """The run that brings the index up to date. One that waits already is not queued again."""
    return NewRun(
        run_id=new_id(),
        workspace_id=workspace_id,
        agent="rebuild_index",
        queue="system",
        input={},
        session_id=None,
        serial=False,
        unique_key="rebuild_index",
        max_attempts=5,
    )
