"""`researchcopilot ensure-key --file PATH`: a key that exists already is made to open a workspace.

For installations whose key is made elsewhere and kept in a secret: the file holds `rc_` and 43
characters. Safe to repeat. One that was revoked stays revoked, and that is told as a failure.
"""

import argparse
import hashlib
import os
import sys
from pathlib import Path

from researchcopilot.core.errors import ConfigError
from researchcopilot.core.settings import load
from researchcopilot.runtime.loop import run
from researchcopilot.storage.db import Database
from researchcopilot.storage.given_keys import Given, ensure
from researchcopilot.storage.keys import looks_like_key


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="researchcopilot ensure-key", description="Make the database know a key. Safe twice."
    )
    parser.add_argument("--file", required=True, type=Path, help="file that holds the key")
    parser.add_argument("--workspace", default="default", help="made if there is none")
    parser.add_argument("--name", default="", help="what it is for, for people")
    arguments = parser.parse_args(argv)
    key = read(arguments.file)
    return run(_ensure(key, arguments.workspace, arguments.name))


def read(path: Path) -> str:
    """The key in that file. Raises ConfigError, never with the key itself."""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a key: {error}.") from error
    if not looks_like_key(key):
        raise ConfigError(
            f"{path} holds no API key: rc_ and 43 letters, digits, - or _ are wanted, "
            "as `researchcopilot keys create --quiet` prints them."
        )
    return key


async def _ensure(key: str, workspace: str, name: str) -> int:
    db = Database(load(os.environ).database)
    await db.open()
    try:
        digest = hashlib.sha256(key.encode()).digest()
        outcome = await ensure(db, digest=digest, hint=key[:9], workspace=workspace, name=name)
    finally:
        await db.close()
    if outcome in (Given.ADDED, Given.THERE):
        print(f"{key[:9]}… opens the workspace {workspace} ({outcome.value}).")
        return 0
    print(f"{key[:9]}… {outcome.value}: put another key into its secret.", file=sys.stderr)
    return 1
