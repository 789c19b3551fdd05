"""What the clock looks for again and again is answered by an index, however much is queued.

A comparison with `clock_timestamp()` cannot be: it is volatile, so an index is walked from end to
end. With a million queued runs that made one look for deadlines cost 0.7 s, each five seconds.
"""

from typing import Any

import pytest
from psycopg import AsyncConnection
from tests.support import new_run, submit

from researchcopilot.core.ids import new_id
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.sql import load

pytestmark = pytest.mark.anyio
RUNS = 3_000
# name → (table, query, parameters); nothing of it is there to be found.
SEARCHES: dict[str, tuple[str, bytes, dict[str, Any]]] = {
    "deadlines": ("runs", b"SELECT * FROM expire_1(500)", {}),
    "leases": ("runs", b"SELECT * FROM reclaim_2(500, 3)", {}),
    "lost pushes": ("runs", load("recovery")["lost"],
                    {"queue": "runs", "before_us": 1, "hinted_before_us": 1, "limit": 500}),
    "due soon": ("runs", load("recovery")["soon"], {"queue": "runs", "workspace_id": 1}),
    "old runs": ("runs", load("retention")["runs"], {"runs_s": 60, "dead_s": 60, "limit": 100}),
    "old keys": ("idempotency_keys", load("retention")["keys"], {"keys_s": 60, "limit": 100}),
    "memories past their time": ("memories", load("memories")["remove_expired"], {"limit": 100}),
    "schedules that are due": ("schedules", load("schedules")["due"], {"limit": 100}),
    "objects that went": ("objects", load("objects")["forget"], {"cluster": "default"}),
}  # fmt: skip
FILL = (
    b"UPDATE runs SET status = 'succeeded', finished_at = now(), result = '1' WHERE seq % 2 = 0",
    b"INSERT INTO idempotency_keys (workspace_id, route, key, body_hash, run_ids, created_at)"
    b" SELECT 1, 'runs', n::text, '', '{}', now() FROM generate_series(1, 3000) n",
    b"INSERT INTO memories (memory_id, workspace_id, run_id, question, text, tokens, created_at,"
    b" expires_at) SELECT gen_random_uuid(), 1, gen_random_uuid(), 'x', 'x', '{x}', now(),"
    b" now() + interval '1 day' FROM generate_series(1, 3000)",
    b"INSERT INTO schedules (schedule_id, workspace_id, name, system, session_id, agent, input,"
    b" interval_s, anchor, misfire, overlap, next_tick, created_at, updated_at)"
    b" SELECT gen_random_uuid(), 1, n::text, false, gen_random_uuid(), 'echo', '1', 3600, now(),"
    b" 'skip', 'skip', now() + interval '1 hour', now(), now() FROM generate_series(1, 3000) n",
    b"INSERT INTO objects (uid, kind, cluster, namespace, name, workspace_id, gone_at)"
    b" SELECT gen_random_uuid(), 'ResearchRun', 'default', 'research', n::text, 1, now()"
    b" FROM generate_series(1, 3000) n",
    b"ANALYZE",
)


async def test_a_search_reads_what_it_finds(db: Database, queue: Queue) -> None:
    """Protects: none of them walks a table or an index from end to end."""
    for _ in range(RUNS // 500):
        await submit(db, queue, *(new_run(session_id=new_id()) for _ in range(500)))
    for statement in FILL:
        await db.execute(statement)
    read = {name: await _read(db, *search) for name, search in SEARCHES.items()}
    assert {name: rows for name, rows in read.items() if rows > 10} == {}


async def _read(db: Database, table: str, query: bytes, params: dict[str, Any]) -> int:
    """How many rows of the table the query looks at, by the connection's own counters."""
    async with db.transaction() as connection:
        before = await _looked_at(connection, table)
        cursor = await connection.execute(query, params)
        assert cursor.rowcount <= 0 or await cursor.fetchall() == []
        return await _looked_at(connection, table) - before


async def _looked_at(connection: AsyncConnection, table: str) -> int:
    cursor = await connection.execute(
        b"SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = %s",
        [table],
    )
    row = await cursor.fetchone()
    return int(row[0]) if row else 0
