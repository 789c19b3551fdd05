"""`researchcopilot workspaces list|zone`: workspaces, and where their days begin and end.

The zone says when a day of the daily report begins, and when its 08:00 is.
"""

import argparse
import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from researchcopilot.core.cron import check_zone
from researchcopilot.core.errors import BadInput
from researchcopilot.core.settings import load
from researchcopilot.runtime import log
from researchcopilot.storage.db import Database
from researchcopilot.storage.migrate import check_schema
from researchcopilot.storage.workspaces import list_workspaces, set_zone

Verb = Callable[[Database, argparse.Namespace], Awaitable[int]]


def main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    settings = load(os.environ)
    log.setup("error", settings.log.format)
    return asyncio.run(_with_database(Database(settings.database), arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="researchcopilot workspaces", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="list|zone")
    show = verbs.add_parser("list", help="all workspaces with their zones")
    show.add_argument("--json", action="store_true", help="JSON, one workspace a line")
    show.set_defaults(verb=_list)
    zone = verbs.add_parser("zone", help="set a workspace's zone")
    zone.add_argument("name", metavar="WORKSPACE")
    zone.add_argument("zone", metavar="ZONE", help="its IANA name, like Asia/Shanghai")
    zone.set_defaults(verb=_zone)
    return parser


async def _with_database(db: Database, arguments: argparse.Namespace) -> int:
    verb: Verb = arguments.verb
    await db.open()
    try:
        await check_schema(db)
        return await verb(db, arguments)
    finally:
        await db.close()


async def _list(db: Database, arguments: argparse.Namespace) -> int:
    for workspace in await list_workspaces(db):
        if arguments.json:
            fields = {**asdict(workspace), "created_at": workspace.created_at.isoformat()}
            print(json.dumps(fields, ensure_ascii=False))
        else:
            print(f"{workspace.workspace_id:>6}  {workspace.name:<40}  {workspace.zone}")
    return 0


async def _zone(db: Database, arguments: argparse.Namespace) -> int:
    try:
        check_zone(arguments.zone)
    except BadInput as error:
        raise BadInput(f"ZONE {error.message}.") from error
    workspace = await set_zone(db, arguments.name, arguments.zone)
    print(f"The days of the workspace {workspace.name} begin at midnight in {workspace.zone}.")
    return 0
