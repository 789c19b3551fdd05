"""`researchcopilot keys create|list|revoke`: API keys of workspaces.

A key is printed once, at its creation, and kept as a hash. `--quiet` prints the bare key (or bare
ids) for scripts, `--json` everything as JSON; what is said to people goes to stderr then.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from researchcopilot.core.settings import load
from researchcopilot.runtime import log
from researchcopilot.storage import keys
from researchcopilot.storage.db import Database
from researchcopilot.storage.keys import KeyInfo
from researchcopilot.storage.migrate import check_schema

Verb = Callable[[Database, argparse.Namespace], Awaitable[int]]


def main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    settings = load(os.environ)
    log.setup("error", settings.log.format)
    return asyncio.run(_with_database(Database(settings.database), arguments))


async def _with_database(db: Database, arguments: argparse.Namespace) -> int:
    verb: Verb = arguments.verb
    await db.open()
    try:
        await check_schema(db)
        return await verb(db, arguments)
    finally:
        await db.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="researchcopilot keys", description="API keys.")
    verbs = parser.add_subparsers(required=True, metavar="create|list|revoke")
    create = verbs.add_parser("create", help="make a key; it is shown this once")
    create.add_argument("--workspace", default="default", help="made if there is none")
    create.add_argument("--name", default="", help="what it is for, for people")
    create.set_defaults(verb=_create)
    show = verbs.add_parser("list", help="all keys, without themselves")
    show.add_argument("--workspace", help="only those of this workspace")
    show.set_defaults(verb=_list)
    revoke = verbs.add_parser("revoke", help="end a key: refused everywhere within 5 seconds")
    revoke.add_argument("key", nargs="+", help="key_id or hint, as `list` shows them")
    revoke.set_defaults(verb=_revoke)
    for verb in (create, show, revoke):
        how = verb.add_mutually_exclusive_group()
        how.add_argument("--json", action="store_true", help="JSON")
        how.add_argument("--quiet", action="store_true", help="bare keys or ids, one a line")
    return parser


async def _create(db: Database, arguments: argparse.Namespace) -> int:
    key, info = await keys.create(db, workspace=arguments.workspace, name=arguments.name)
    if arguments.json:
        print(json.dumps({"key": key, **_fields(info)}, ensure_ascii=False))
        return 0
    print(key)
    if not arguments.quiet:
        print(
            f"Keep it now: it is not shown again. It opens the workspace {info.workspace}.\n"
            f"Send it as `Authorization: Bearer {info.hint}…`; "
            f"end it with `researchcopilot keys revoke {info.hint}`.",
            file=sys.stderr,
        )
    return 0


async def _list(db: Database, arguments: argparse.Namespace) -> int:
    found = await keys.list_keys(db, workspace=arguments.workspace)
    if arguments.json:
        print(json.dumps([_fields(info) for info in found], ensure_ascii=False, indent=2))
    elif arguments.quiet:
        for info in found:
            if info.revoked_at is None:
                print(info.key_id)
    elif found:
        _print_table(found)
    else:
        print("There are no keys yet: researchcopilot keys create", file=sys.stderr)
    return 0


async def _revoke(db: Database, arguments: argparse.Namespace) -> int:
    failed = False
    for which in arguments.key:
        found = await keys.revoke(db, which)
        if len(found) != 1:
            failed = True
            words = "is no key_id or hint" if not found else "is the hint of several: take the id"
            print(f"{which} {words}. See `researchcopilot keys list`.", file=sys.stderr)
        elif arguments.json:
            print(json.dumps(_fields(found[0]), ensure_ascii=False))
        elif arguments.quiet:
            print(found[0].key_id)
        else:
            print(f"{found[0].hint}… of {found[0].workspace} is revoked: within 5 s everywhere.")
    return 1 if failed else 0


def _fields(info: KeyInfo) -> dict[str, Any]:
    return {
        "key_id": info.key_id,
        "workspace": info.workspace,
        "name": info.name,
        "hint": info.hint,
        "created_at": info.created_at.isoformat(),
        "revoked_at": info.revoked_at.isoformat() if info.revoked_at else None,
    }


def _print_table(found: Sequence[KeyInfo]) -> None:
    rows = [("KEY_ID", "HINT", "WORKSPACE", "NAME", "CREATED", "REVOKED")]
    for info in found:
        revoked = f"{info.revoked_at:%Y-%m-%d %H:%M}" if info.revoked_at else "-"
        created = f"{info.created_at:%Y-%m-%d %H:%M}"
        rows.append((info.key_id, info.hint, info.workspace, info.name or "-", created, revoked))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
