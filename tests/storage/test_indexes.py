"""Index versions: published by compare and set, pinned by runs, pruned without hurting either."""

import asyncio
import hashlib
import random
from typing import Any

import psycopg
import pytest
from tests.storage.test_documents import someone_waits

from researchcopilot.core.errors import LostClaim
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Claim, NewRun, Outcome, Submission
from researchcopilot.core.settings import Settings
from researchcopilot.storage import indexes, moves
from researchcopilot.storage.db import Database
from researchcopilot.storage.indexes import BlobsMissing, NewVersion, Pruned
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.sql import load
from researchcopilot.storage.submit import Submitter

pytestmark = pytest.mark.anyio
SQL = load("indexes")
WORKER = new_id()


def named(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def version(built_from: int, *pieces: bytes) -> NewVersion:
    files = {"meta.json": tuple(named(piece) for piece in pieces)}
    return NewVersion(built_from, 1, frozenset({new_id()}), 3, files)


async def publish(db: Database, built_from: int, *pieces: bytes) -> int | None:
    for piece in pieces:
        await indexes.put_blob(db, named(piece), piece)
    return await indexes.publish(db, 1, version(built_from, *pieces))


async def claimed(db: Database, queue: Queue, run_id: str | None = None) -> Claim:
    """A run in our hands."""
    if run_id is None:
        run_id = new_id()
        submitter = Submitter(db, queue)
        run = NewRun(run_id, 1, "research", "runs", "why?", new_id(), serial=False)
        await submitter(Submission((run,)))
        await submitter.close()
    [verdict] = await moves.claim(db, [run_id], worker_id=WORKER, claim_id=new_id(), lease_s=60)
    assert verdict.claim is not None
    return verdict.claim


async def end(db: Database, claim: Claim, kind: str = "succeeded") -> None:
    outcome = Outcome(claim.run_id, claim.claim_no, WORKER, kind, result='{"answer": "so"}')
    await moves.finish(db, WORKER, [outcome])


async def versions(db: Database) -> list[int]:
    rows = await db.rows(b"SELECT version FROM index_versions ORDER BY version")
    return [row[0] for row in rows]


async def blobs(db: Database) -> set[str]:
    return {row[0] for row in await db.rows(b"SELECT sha256 FROM index_blobs")}


async def test_a_version_is_published_with_its_files(db: Database) -> None:
    assert await indexes.latest(db, 1) is None
    assert await indexes.files_of(db, 1, 1) is None
    assert await publish(db, 0, b"one", b"two", b"one") == 1
    found = await indexes.latest(db, 1)
    assert found is not None
    assert (found.version, found.format, found.chunks, len(found.document_ids)) == (1, 1, 3, 1)
    files = {"meta.json": (named(b"one"), named(b"two"), named(b"one"))}
    assert await indexes.files_of(db, 1, 1) == (1, files)
    assert await indexes.get_blob(db, named(b"two")) == b"two"
    assert await indexes.get_blob(db, named(b"none")) is None
    assert await indexes.latest(db, 2) is None


async def test_a_builder_that_was_slower_publishes_nothing(db: Database) -> None:
    assert await publish(db, 0, b"one") == 1
    assert await publish(db, 0, b"two") is None
    assert await publish(db, 1, b"two") == 2
    assert await versions(db) == [1, 2]


async def test_of_many_builders_at_once_one_publishes(db: Database) -> None:
    for base in range(3):
        results = await asyncio.gather(*(publish(db, base, b"same", bytes([n])) for n in range(8)))
        assert sorted(results, key=str) == [base + 1] + [None] * 7


async def test_a_builder_from_long_ago_does_not_fill_a_gap_that_pruning_left(db: Database) -> None:
    for base in range(5):
        await publish(db, base, b"one")
    assert (await indexes.prune(db, 1, keep=2)).versions == 3
    assert await publish(db, 1, b"late") is None
    assert await versions(db) == [4, 5]


async def test_a_version_that_names_a_missing_blob_is_refused_whole(db: Database) -> None:
    with pytest.raises(BlobsMissing):
        await indexes.publish(db, 1, version(0, b"never stored"))
    assert await versions(db) == []


async def test_blobs_that_are_there_are_not_sent_again(db: Database) -> None:
    await indexes.put_blob(db, named(b"one"), b"one")
    await indexes.put_blob(db, named(b"one"), b"one")
    assert await indexes.touch(db, [named(b"one"), named(b"two")]) == {named(b"one")}


def test_files_are_split_into_pieces_of_eight_megabytes() -> None:
    assert [len(piece) for piece in indexes.split(b"x" * (2 * 8_388_608 + 5))] == [
        8_388_608,
        8_388_608,
        5,
    ]
    assert list(indexes.split(b"")) == []


async def test_a_run_reads_one_version_to_its_end(db: Database, queue: Queue) -> None:
    claim = await claimed(db, queue)
    assert await indexes.pin(db, claim) is None
    await publish(db, 0, b"one")
    assert await indexes.pin(db, claim) == 1
    await publish(db, 1, b"two")
    assert await indexes.pin(db, claim) == 1
    await end(db, claim, "release")
    again = await claimed(db, queue, claim.run_id)
    assert again.claim_no == 2
    assert await indexes.pin(db, again) == 1
    with pytest.raises(LostClaim):
        await indexes.pin(db, claim)


async def test_pruning_keeps_the_newest_and_what_live_runs_read(db: Database, queue: Queue) -> None:
    await publish(db, 0, b"one")
    running, waiting, done = [await claimed(db, queue) for _ in range(3)]
    for claim in (running, waiting, done):
        assert await indexes.pin(db, claim) == 1
    await end(db, waiting, "release")
    await end(db, done)
    for base in range(1, 5):
        await publish(db, base, b"one")
    assert await indexes.prune(db, 1, keep=2) == Pruned(2, 0)
    assert await versions(db) == [1, 4, 5]
    await end(db, running)
    assert (await indexes.prune(db, 1, keep=2)).versions == 0
    await end(db, await claimed(db, queue, waiting.run_id))
    assert (await indexes.prune(db, 1, keep=2)).versions == 1
    assert await versions(db) == [4, 5]


async def test_pruning_passes_over_a_version_that_is_being_pinned(
    db: Database, queue: Queue, database_url: str
) -> None:
    await publish(db, 0, b"one")
    claim = await claimed(db, queue)
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await connection.execute(SQL["pin"], key_of(claim))
        for base in range(1, 4):
            await publish(db, base, b"one")
        assert (await indexes.prune(db, 1, keep=1)).versions == 2
        await connection.commit()
    assert (await indexes.prune(db, 1, keep=1)).versions == 0
    assert await versions(db) == [1, 4]


@pytest.mark.parametrize("left", [1, 3])
async def test_a_pin_that_waited_for_pruning_takes_another_version(
    db: Database, queue: Queue, database_url: str, left: int
) -> None:
    """An older one that its snapshot shows, or a newer one that only another look can find."""
    for base in range(2):
        await publish(db, base, b"one")
    claim = await claimed(db, queue)
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        if left == 3:
            await connection.execute("INSERT INTO index_versions VALUES (1, 3, 1, '{}', 0)")
        await connection.execute("DELETE FROM index_versions WHERE version <> %s", (left,))
        pinning = asyncio.create_task(indexes.pin(db, claim))
        await someone_waits(database_url)
        await connection.commit()
    assert await pinning == left


async def test_a_blob_that_is_about_to_be_named_is_not_swept(
    db: Database, database_url: str
) -> None:
    await indexes.put_blob(db, named(b"one"), b"one")
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await connection.execute(SQL["publish"], params(version(0, b"one")))
        assert await indexes.prune(db, 1, idle_s=0) == Pruned(0, 0)
        await connection.commit()
    assert await indexes.prune(db, 1, idle_s=0) == Pruned(0, 0)
    assert await blobs(db) == {named(b"one")}


async def test_a_blob_that_was_swept_first_is_reported_missing(
    db: Database, database_url: str
) -> None:
    await indexes.put_blob(db, named(b"one"), b"one")
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        for name in ("idle_blobs", "sweep_blobs"):
            await connection.execute(
                SQL[name], {"idle_s": 0, "limit": 10, "hashes": [named(b"one")]}
            )
        publishing = asyncio.create_task(indexes.publish(db, 1, version(0, b"one")))
        await someone_waits(database_url)
        await connection.commit()
    with pytest.raises(BlobsMissing):
        await publishing
    assert await versions(db) == []


async def test_blobs_go_once_no_version_names_them_and_nobody_wanted_them(db: Database) -> None:
    for base, piece in enumerate([b"one", b"two", b"three"]):
        await publish(db, base, b"shared", piece)
    assert await indexes.prune(db, 1, keep=1, idle_s=3600) == Pruned(2, 0)
    assert await indexes.prune(db, 1, keep=1, idle_s=0) == Pruned(0, 2)
    assert await blobs(db) == {named(b"shared"), named(b"three")}


async def build(db: Database, seed: int) -> int:
    """Publish twelve versions of few pieces; how often pieces had been swept under our hands."""
    dice = random.Random(seed)
    published = missing = 0
    while published < 12:
        newest = await indexes.latest(db, 1)
        pieces = [bytes([dice.randrange(4)]) for _ in range(2)]
        new = version(newest.version if newest else 0, *pieces)
        try:
            if await indexes.publish(db, 1, new) is not None:
                published += 1
        except BlobsMissing:
            missing += 1
            for piece in pieces:
                await indexes.put_blob(db, named(piece), piece)
    return missing


async def test_builders_readers_and_pruning_at_once_lose_nothing(
    db: Database, queue: Queue, settings: Settings
) -> None:
    """Three builders reuse the same pieces while pruning sweeps whatever nobody names that very
    moment; every published version is whole, every pinned version is there."""
    other = Database(settings.database)
    await other.open()
    await publish(db, 0, b"first")
    claims = [await claimed(db, queue) for _ in range(30)]
    stop = asyncio.Event()

    async def sweep() -> None:
        while not stop.is_set():
            await indexes.prune(other, 1, keep=1, idle_s=0)

    async def pin_all() -> None:
        for claim in claims:
            await indexes.pin(db, claim)

    try:
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            tasks.create_task(sweep())
            pinning = tasks.create_task(pin_all())
            built = [tasks.create_task(build(db, seed)) for seed in range(3)]
            await asyncio.wait([*built, pinning])
            stop.set()
    finally:
        await other.close()
    assert sum(task.result() for task in built) > 0, "pruning never swept under a builder"
    await nothing_is_lost(db)


async def nothing_is_lost(db: Database) -> None:
    lost = await db.rows(
        b"SELECT run_id FROM runs r WHERE index_version IS NOT NULL AND NOT EXISTS"
        b" (SELECT FROM index_versions v WHERE v.version = r.index_version)"
    )
    assert lost == []
    for number in await versions(db):
        found = await indexes.files_of(db, 1, number)
        assert found is not None
        assert len(found[1]["meta.json"]) in (1, 2)
        assert set(found[1]["meta.json"]) <= await blobs(db)


def key_of(claim: Claim) -> dict[str, Any]:
    return {
        "run_id": claim.run_id,
        "claim_no": claim.claim_no,
        "worker_id": claim.worker_id,
        "workspace_id": claim.workspace_id,
    }


def params(new: NewVersion) -> dict[str, Any]:
    [(name, parts)] = new.files.items()
    return {
        "workspace_id": 1,
        "built_from": new.built_from,
        "format": new.format,
        "document_ids": sorted(new.document_ids),
        "chunks": new.chunks,
        "names": [name] * len(parts),
        "parts": list(range(len(parts))),
        "hashes": list(parts),
    }
