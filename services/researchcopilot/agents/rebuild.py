"""rebuild_index: bring a workspace's index up to its documents.

The new version is the one before, less the documents that are gone, plus those that are new; if
much is gone, or the format is another, it is built from nothing. Nothing changed: no new version.
Killed anywhere, run twice, or by two workers at once, the result is the same, since a version is
published whole, only on top of the one it was built from, and only while nobody has taken the lock
under which it was built; whoever was slower starts again from the newer one. The lock saves the
second builder of a workspace that work: it waits a while for the first, and then mostly finds
nothing to do. Without Redis, or after too long a wait, it goes without the lock. One batch of
documents and one piece of a file are in memory at a time.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from researchcopilot.agents.contract import Context, agent
from researchcopilot.agents.research.files import describe, download, upload
from researchcopilot.agents.research.folders import scratch
from researchcopilot.agents.research.index import FORMAT, Builder, deleted_share
from researchcopilot.core.documents import Document
from researchcopilot.core.errors import BadAgentInput, RetryLater, Unavailable
from researchcopilot.storage import documents, indexes
from researchcopilot.storage.indexes import BlobsMissing, IndexVersion, NewVersion
from researchcopilot.storage.keeper import Held

BATCH_BYTES = 4_000_000
BATCH_DOCUMENTS = 200
MOST_DELETED = 0.25
_TRIES = 5
_WAIT_S = 30.0  # for the lock: a build takes seconds
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Difference:
    """What a version has to do to the one before; `whole`: build from nothing instead."""

    add: tuple[str, ...]
    remove: tuple[str, ...]
    whole: bool


@agent(
    queue="system",
    description="Brings the search index up to the documents of the workspace.",
    input_schema={"type": "object", "additionalProperties": False},
)
async def rebuild_index(ctx: Context, input: Any) -> dict[str, Any]:  # noqa: A002
    """Returns {"index_version", "changed", "documents", "chunks"}; version null without any."""
    if input not in ({}, None):
        raise BadAgentInput("rebuild_index takes no input: send {}.")
    for _ in range(_TRIES):
        async with AsyncExitStack() as stack:
            result = await _bring_up(ctx, await _lock(ctx, stack))
        if result is not None:
            return result
    raise RetryLater(f"Other builders were faster {_TRIES} times.", after=5.0)


async def _lock(ctx: Context, stack: AsyncExitStack) -> Held | None:
    """The lock of the workspace's builders; None: go without, publishing compares and sets."""
    name = f"rebuild_index:{ctx.run.workspace_id}"
    try:
        held = await stack.enter_async_context(ctx.locks.hold(name, wait_s=_WAIT_S, fenced=True))
    except Unavailable as error:
        log.warning("the index is built without its lock: %s", error)
        return None
    if held is None:
        log.info("another builder is at work for more than %g s; this one does not wait", _WAIT_S)
    return held


async def _bring_up(ctx: Context, held: Held | None) -> dict[str, Any] | None:
    """One try; None if another builder published first, or has the lock now."""
    base = await indexes.latest(ctx.db, ctx.run.workspace_id)
    active = await documents.active_documents(ctx.db, ctx.run.workspace_id)
    if base is not None and base.format > FORMAT:
        raise RetryLater(
            f"Index version {base.version} has format {base.format}, newer than the {FORMAT} of "
            "this worker; a newer worker has to build it.",
            after=30.0,
        )
    if is_current(base, active):
        return _result(base.version if base else None, False, active, base.chunks if base else 0)
    with scratch(ctx.cache_dir / "work") as folder:
        target, change = await _laid_out(ctx, folder, base, active)
        chunks = await _build(ctx, target, change, active)
        files = await asyncio.to_thread(describe, target)
        built_from = base.version if base else 0
        new = NewVersion(built_from, FORMAT, frozenset(active), chunks, files)
        version = await _publish(ctx, target, new, held, whole=change.whole)
    if version is None:
        log.info("index version %d has to be built again", built_from + 1)
        return None
    await indexes.prune(ctx.db, ctx.run.workspace_id)
    return _result(version, True, active, chunks)


def _result(
    version: int | None, changed: bool, active: Mapping[str, int], chunks: int
) -> dict[str, Any]:
    return {
        "index_version": version,
        "changed": changed,
        "documents": len(active),
        "chunks": chunks,
    }


def is_current(base: IndexVersion | None, active: Mapping[str, int]) -> bool:
    """Does the version hold exactly the active documents?"""
    if base is None:
        return not active
    return base.format == FORMAT and base.document_ids == active.keys()


def difference(base: IndexVersion | None, active: Mapping[str, int]) -> Difference:
    """By sets of ids: a document's text never changes under its id, and one that was committed
    late is in the set like any other."""
    before = base.document_ids if base and base.format == FORMAT else frozenset[str]()
    gone = before - active.keys()
    if not before or len(gone) > MOST_DELETED * len(before):
        return Difference(tuple(sorted(active)), (), True)
    return Difference(tuple(sorted(active.keys() - before)), tuple(sorted(gone)), False)


async def _laid_out(
    ctx: Context, folder: Path, base: IndexVersion | None, active: Mapping[str, int]
) -> tuple[Path, Difference]:
    """A folder to build in, with the files of `base` if it is to grow, and what to do there."""
    change = difference(base, active)
    if base is not None and not change.whole:
        target = folder / "grown"
        target.mkdir()
        if await _fetched(ctx, base, target):
            return target, change
        change = difference(None, active)
    target = folder / "whole"
    target.mkdir()
    return target, change


async def _fetched(ctx: Context, base: IndexVersion, target: Path) -> bool:
    """Are the files of `base` here and worth to grow from? Files that are damaged or hold too many
    deleted chunks are not: a build from nothing mends both."""
    found = await indexes.files_of(ctx.db, ctx.run.workspace_id, base.version)
    if found is None:
        return False
    try:
        await download(ctx.db, found[1], target)
        return await asyncio.to_thread(deleted_share, target) <= MOST_DELETED
    except (RetryLater, OSError, ValueError, KeyError) as error:
        log.warning("index version %d is built from nothing: %s", base.version + 1, error)
        return False


async def _build(ctx: Context, target: Path, change: Difference, active: Mapping[str, int]) -> int:
    """Make the changes; the number of chunks."""
    builder = await asyncio.to_thread(Builder, target)
    await asyncio.to_thread(builder.remove, change.remove)
    done = 0
    for batch in batches(change.add, active):
        texts = await documents.get_documents(ctx.db, ctx.run.workspace_id, batch)
        await asyncio.to_thread(_add_all, builder, texts)
        done += len(batch)
        await ctx.emit("progress", {"documents": done, "of": len(change.add)})
    return await asyncio.to_thread(builder.finish)


def _add_all(builder: Builder, texts: Sequence[Document]) -> None:
    for text in texts:
        builder.add(text)


def batches(document_ids: Sequence[str], sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """The ids in groups whose texts fit into memory together; a huge one goes alone."""
    group: list[str] = []
    size = 0
    for document_id in document_ids:
        too_much = size + sizes[document_id] > BATCH_BYTES or len(group) >= BATCH_DOCUMENTS
        if group and too_much:
            yield group
            group, size = [], 0
        group.append(document_id)
        size += sizes[document_id]
    if group:
        yield group


async def _publish(
    ctx: Context, target: Path, new: NewVersion, held: Held | None, *, whole: bool
) -> int | None:
    """The new version's number; None if another builder was faster. After a build from nothing no
    piece that is there is trusted: a damaged one may have been the reason for it."""
    for _ in range(_TRIES):
        await upload(ctx.db, target, new.files, whole=whole)
        try:
            return await indexes.publish(ctx.db, ctx.run.workspace_id, new, held)
        except BlobsMissing:
            log.info("pieces of the new index were swept meanwhile; they are stored again")
    raise RetryLater("Pieces of the new index were swept again and again.", after=5.0)
