"""API keys and workspaces in Postgres."""

import asyncio
import hashlib

import pytest

from researchcopilot.api.auth import Keys
from researchcopilot.api.problems import Problem
from researchcopilot.core.errors import BadInput
from researchcopilot.storage import keys
from researchcopilot.storage.db import Database

pytestmark = pytest.mark.anyio


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


async def test_a_key_is_kept_as_its_hash_only(db: Database) -> None:
    """Protects: who reads the database or a backup of it has no key."""
    key, info = await keys.create(db, workspace="default", name="mine")
    assert keys.looks_like_key(key)
    assert await keys.find(db, digest(key)) == await keys.workspace_id_of(db, "default")
    assert (info.hint, info.name, info.revoked_at) == (key[:9], "mine", None)
    [row] = await db.rows(b"SELECT api_keys::text FROM api_keys")
    assert key[9:] not in row[0]


async def test_revoking_ends_one_key(db: Database) -> None:
    """Protects: a key can be ended by its hint or id, the first time counts, others live on."""
    one, first = await keys.create(db, workspace="default", name="a")
    two, second = await keys.create(db, workspace="default", name="b")
    [revoked] = await keys.revoke(db, first.hint)
    assert revoked.revoked_at is not None
    assert await keys.find(db, digest(one)) is None
    assert await keys.find(db, digest(two)) is not None
    assert await keys.revoke(db, first.key_id) == [revoked]
    assert await keys.revoke(db, "rc_nobody") == []
    listed = await keys.list_keys(db)
    assert [info.key_id for info in listed] == [first.key_id, second.key_id]


async def test_workspaces_are_made_once_also_at_once(db: Database) -> None:
    """Protects: two commands that name a new workspace at once get one workspace."""
    found = await asyncio.gather(*(keys.workspace_id_of(db, "team-a") for _ in range(8)))
    assert len(set(found)) == 1
    assert await keys.workspace_id_of(db, "default") not in found


@pytest.mark.parametrize("name", ["", "A", "a b", "-a", "ü", "a" * 64, "a\n"])
async def test_bad_names_of_workspaces_are_refused(db: Database, name: str) -> None:
    """Protects: the refusal is ours and says what would be right, not Postgres'."""
    with pytest.raises(BadInput, match="1 to 63"):
        await keys.workspace_id_of(db, name)


def scope(key: str) -> dict[str, object]:
    return {"headers": [(b"authorization", f"Bearer {key}".encode())]}


async def test_a_revoked_key_is_refused_when_its_memory_is_over(db: Database) -> None:
    """Protects: a key is remembered for its time and not longer, and unknown ones too."""
    key, info = await keys.create(db, workspace="default", name="")
    remembering, forgetting = Keys(db, remember_s=60), Keys(db, remember_s=0)
    for known in (remembering, forgetting):
        assert await known.workspace_of(scope(key)) == 1
    await keys.revoke(db, info.key_id)
    assert await remembering.workspace_of(scope(key)) == 1
    with pytest.raises(Problem, match="unknown or was revoked"):
        await forgetting.workspace_of(scope(key))


async def test_a_thousand_requests_of_one_key_are_one_lookup(db: Database) -> None:
    """Protects: a busy client whose key has to be looked up again does not flood the pool."""
    key, _ = await keys.create(db, workspace="default", name="")
    known = Keys(db)
    before = db.pool.get_stats().get("requests_num", 0)
    await asyncio.gather(*(known.workspace_of(scope(key)) for _ in range(1000)))
    assert db.pool.get_stats()["requests_num"] - before == 1
