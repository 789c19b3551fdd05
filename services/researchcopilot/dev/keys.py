"""The stack's own API key: made once for a data folder, kept in it, readable by its owner only."""

import asyncio
import hashlib
import os

from researchcopilot.core.settings import DatabaseSettings
from researchcopilot.dev.stack import Stack
from researchcopilot.storage import keys
from researchcopilot.storage.db import Database

FILE = "api-key"


def api_key(stack: Stack) -> str:
    """The key of this data folder, if it is still good; else a new one."""
    file = stack.folder / FILE
    kept = file.read_text().strip() if file.exists() else ""
    key = asyncio.run(_good_key(stack.settings.database, kept))
    if key != kept:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
            opened.write(key + "\n")
    return key


async def _good_key(settings: DatabaseSettings, kept: str) -> str:
    db = Database(settings)
    await db.open()
    try:
        if kept and await keys.find(db, hashlib.sha256(kept.encode()).digest()) is not None:
            return kept
        key, _ = await keys.create(db, workspace="default", name="embedded stack")
        return key
    finally:
        await db.close()
