"""Migrations: numbered files, forward only, in `pre` (safe under the old code) and `post` (after
the roll-out), and the moves as functions, which carry their version in their name.

All of it is one transaction under a transaction-level advisory lock: two at once are harmless (the
second finds everything done), and a failure leaves nothing behind. A service on an older schema
waits and says so (`check_schema`); on a newer one it works, since functions are never changed
under their name in a way that old code would notice.
"""

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from researchcopilot.core.errors import ConfigError, SchemaBehind, Unavailable
from researchcopilot.storage.db import Database, Locked
from researchcopilot.storage.silence import script
from researchcopilot.storage.sql import load

_SQL = load("migrate")
PHASES = ("pre", "post")
# For a table that somebody reads for long (a backup): all others stand in line behind a lock that
# is waited for, renewals too, and leases do not wait.
LOCK_S = 2.0


@dataclass(frozen=True, slots=True)
class Migration:
    """One file. `repeats`: a function, installed again whenever its text differs."""

    name: str
    text: str
    repeats: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def migrations(phases: tuple[str, ...] = PHASES) -> list[Migration]:
    """What this code brings along, in the order in which it is applied."""
    found: list[Migration] = []
    if "pre" in phases:
        found += [*_folder("pre"), *_folder("functions")]
    if "post" in phases:
        found += _folder("post")
    return found


def _folder(name: str) -> list[Migration]:
    folder = files("researchcopilot.storage") / "migrations" / name
    if not folder.is_dir():  # `post` is empty as long as nothing has to wait for a roll-out
        return []
    texts: list[Traversable] = [f for f in folder.iterdir() if f.name.endswith(".sql")]
    return [
        Migration(f"{name}/{file.name}", file.read_text(encoding="utf-8"), name == "functions")
        for file in sorted(texts, key=lambda file: file.name)
    ]


async def migrate(db: Database, phases: tuple[str, ...] = PHASES) -> list[str]:
    """Apply what is missing; the names of what was applied now. Raises Unavailable, with nothing
    changed, where a table is in use for longer than LOCK_S."""
    try:
        return await _migrate(db, phases)
    except Locked as error:
        raise Unavailable(
            "A table that is to be changed is in use by a long transaction: a backup, an open psql "
            f"(see pg_stat_activity). Nothing was changed; migrate gives way after {LOCK_S:g} s, "
            "so that no run loses its lease behind it. Run it again."
        ) from error


async def _migrate(db: Database, phases: tuple[str, ...]) -> list[str]:
    async with db.transaction() as connection:
        await connection.execute(_SQL["lock"])
        await connection.execute(_SQL["patience"], {"ms": str(int(LOCK_S * 1000))})
        await connection.execute(_SQL["create_table"])
        cursor = await connection.execute(_SQL["applied"])
        done: dict[str, str] = dict(await cursor.fetchall())
        applied = []
        for migration in migrations(phases):
            if done.get(migration.name) == migration.sha256:
                continue
            if migration.name in done and not migration.repeats:
                raise ConfigError(
                    f"The migration {migration.name} is not the one that this database was made "
                    "with. Migrations are never edited: restore the file and add a new one."
                )
            with script(connection, migration.text):
                await connection.execute(migration.text.encode())
            await connection.execute(
                _SQL["record"], {"name": migration.name, "sha256": migration.sha256}
            )
            applied.append(migration.name)
    return applied


async def check_schema(db: Database) -> None:
    """Raise SchemaBehind if this code needs something that `migrate` has not brought yet."""
    row = await db.one(_SQL["has_table"])
    rows = await db.rows(_SQL["applied"]) if row and row["found"] else []
    done = {name for name, _ in rows}
    missing = [m.name for m in migrations(("pre",)) if m.name not in done]
    if missing:
        raise SchemaBehind(
            f"The database lacks {len(missing)} of this version's migrations (first: {missing[0]})."
            " Run `python -m researchcopilot migrate`."
        )
