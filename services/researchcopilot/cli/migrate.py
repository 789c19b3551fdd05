"""`python -m researchcopilot migrate [--phase pre|post|all]`: brings the database up to date."""

import argparse
import os

from researchcopilot.core.settings import load
from researchcopilot.runtime.loop import run
from researchcopilot.storage.db import Database
from researchcopilot.storage.migrate import PHASES, migrate


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="researchcopilot migrate",
        description="Apply what the database lacks. Safe twice, and at once from two places.",
    )
    parser.add_argument(
        "--phase",
        choices=[*PHASES, "all"],
        default="all",
        help="pre: before a roll-out, safe under the old code; post: after it (default: all)",
    )
    phase = parser.parse_args(argv).phase
    return run(bring_up_to_date(PHASES if phase == "all" else (phase,)))


async def bring_up_to_date(phases: tuple[str, ...]) -> int:
    db = Database(load(os.environ).database)
    await db.open()
    try:
        applied = await migrate(db, phases)
    finally:
        await db.close()
    for name in applied:
        print(f"applied  {name}")
    print(f"The database is up to date ({len(applied)} applied).")
    return 0
