"""Watching runs from inside Postgres: a log of every change, and the rules that it is held to.

`install` once on a database that only a test uses; `findings` at the end, when everything has
ended. Each finding is a fault of the product; `history` tells all that is known of one run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from researchcopilot.storage.db import Database

_INSTALL = Path(__file__).with_name("watch.sql").read_bytes()
_MOVES = b"""
    SELECT to_char(at, 'HH24:MI:SS.MS'), what, coalesce(source, '-') || ' -> ' || target,
           claim_no, attempts, losses, coalesce(worker_id::text, '')
    FROM watch_moves WHERE run_id = %(run_id)s ORDER BY move_id"""
_LEDGER = b"""
    SELECT claim_no, to_char(started_at, 'HH24:MI:SS.MS'),
           coalesce(to_char(finished_at, 'HH24:MI:SS.MS'), 'open'), coalesce(outcome, '-'),
           CASE WHEN by_worker THEN 'by itself' ELSE '' END, worker_id::text
    FROM claims WHERE run_id = %(run_id)s ORDER BY claim_no"""
_ROW = b"""
    SELECT 'status ' || status, 'parked ' || parked, 'run_at ' || run_at, 'ready_at ' || ready_at,
           'hinted_at ' || coalesce(hinted_at::text, 'never'), 'agent ' || agent,
           'session ' || coalesce(session_id::text, 'none'), 'error ' || coalesce(error::text, '-')
    FROM runs WHERE run_id = %(run_id)s"""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that was broken, and by which run."""

    rule: str
    run_id: str | None
    detail: str


def summary(found: Sequence[Finding], shown: int = 3) -> list[str]:
    """Rule by rule, how often it was broken and the first few."""
    lines = []
    for rule in dict.fromkeys(finding.rule for finding in found):
        mine = [finding for finding in found if finding.rule == rule]
        lines.append(f"BROKEN  {rule}: {len(mine)} times")
        lines += [
            f"        {f.detail}" + (f"  run {f.run_id}" if f.run_id else "") for f in mine[:shown]
        ]
        lines += ["        …"] if len(mine) > shown else []
    return lines


async def install(db: Database) -> None:
    await db.execute(_INSTALL)


async def findings(db: Database) -> list[Finding]:
    rows = await db.rows(b"SELECT rule, run_id, detail FROM watch_findings ORDER BY rule, run_id")
    return [Finding(*row) for row in rows]


async def history(db: Database, run_id: str) -> str:
    """Its row, the log of its status and its ledger, as a person reads them."""
    blocks = []
    for title, query in (("row", _ROW), ("status log", _MOVES), ("ledger", _LEDGER)):
        rows = await db.rows(query, {"run_id": run_id})
        blocks.append(f"  {title}:" + ("" if rows else " nothing"))
        blocks += [f"    {line}" for line in columns([[str(x) for x in row] for row in rows])]
    return "\n".join(blocks)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned: numbers to the right, words to the left."""
    if not rows:
        return []
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(map(_pad, row, widths)).rstrip() for row in rows]


def _pad(text: str, width: int) -> str:
    return text.rjust(width) if text[:1].isdigit() else text.ljust(width)
