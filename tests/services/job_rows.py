"""Rows as the jobs leave them, for tests of what reads them: reports and memories."""

from datetime import UTC, datetime, timedelta

from tests.services.api_server import Stage

from researchcopilot.core.ids import new_id
from researchcopilot.core.text import dumps
from researchcopilot.storage import reports
from researchcopilot.storage.db import Database
from researchcopilot.storage.keys import workspace_id_of
from researchcopilot.storage.reports import Page

PAGE = "# 日报\n\n**没有新的提问。**\n"
START = datetime(2026, 11, 1, tzinfo=UTC)


def write_reports(here: Stage, workspace: str, days: int) -> None:
    async def work(db: Database) -> None:
        workspace_id = await workspace_id_of(db, workspace)
        for day in range(days):
            start = START + timedelta(days=day)
            span = (start, start + timedelta(days=1), "UTC")
            page = Page("zh", f"日报 {day}", PAGE)
            await reports.store(db, workspace_id, new_id(), span, page, {"runs": {"failed": 0}})

    here.run(work)


def remember(here: Stage, workspace: str, *texts: str, hours: float = 1.0) -> list[str]:
    """Memories of one moment, all equally old; their ids."""
    ids = [new_id() for _ in texts]

    async def work(db: Database) -> None:
        await db.execute(
            b"INSERT INTO memories SELECT m.id, %(w)s, gen_random_uuid(), 'why?', m.text, '{}',"
            b" date_trunc('hour', clock_timestamp()) - interval '2 hours',"
            b" clock_timestamp() + %(hours)s * interval '1 hour'"
            b" FROM jsonb_to_recordset(%(memories)s::jsonb) AS m(id uuid, text text)",
            {
                "w": await workspace_id_of(db, workspace),
                "hours": hours,
                "memories": dumps([{"id": i, "text": t} for i, t in zip(ids, texts, strict=True)]),
            },
        )

    here.run(work)
    return ids
