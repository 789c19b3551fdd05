"""The stage of a model test: the servers as the test's own hand and eye reach them, uncut.

Time is the database's and Redis', so it cannot be set; `passes` moves every time that is written
anywhere so much further into the past, which is the same to whoever reads a clock and compares.
"""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import redis
from tests.storage.model.actors import QUEUES, Place
from tests.storage.model.hints import Hints
from tests.storage.model.judge import Comparing
from tests.storage.model.wire import Crash
from tests.storage.model.world import Observer, World

from researchcopilot.core.settings import DatabaseSettings, RedisSettings

_HERE = Path(__file__).parent
_RULES = (_HERE / "rules.sql").read_bytes()
_WATCH = (_HERE.parents[1] / "chaos/watch.sql").read_bytes()
_PASSING = (_HERE / "passing.lua").read_text(encoding="utf-8")
_EMPTY = b"""
    TRUNCATE runs, claims, sessions, messages, steps, workers, agents, idempotency_keys, duties,
             redis_identity, memories, watch_moves, watch_trouble"""
_FOUND = b"SELECT rule, run_id, detail FROM model_findings"
# Not true of a replay, which has no question of its own; `model_findings` has the rule for both.
_FINISHED = b"""
    SELECT rule, run_id, detail FROM watch_findings
    WHERE rule <> 'one user message for each run of a session'"""


class Stage:
    """Made once; `clear` before each example."""

    def __init__(self, database_url: str, redis_url: str) -> None:
        self.place = Place(DatabaseSettings(url=database_url), RedisSettings(url=redis_url))
        self.seen: Counter[str] = Counter()  # answers and cuts, over all examples
        self.runner = asyncio.Runner()
        self.runner.get_loop().set_exception_handler(_unheard)
        self.observer = Observer(database_url)
        self.observer.do(_WATCH)
        self.observer.do(_RULES)
        self.observer.do(b"INSERT INTO workspaces (name) VALUES ('another')")
        self.redis = redis.Redis.from_url(redis_url, decode_responses=True)
        self._pass = self.redis.register_script(_PASSING)

    def close(self) -> None:
        for connection in self.place.spare:
            connection.pgconn.finish()
        self.observer.connection.close()
        self.redis.close()
        self.runner.close()

    def clear(self) -> Comparing:
        self.observer.do(_EMPTY)
        self.redis.flushall()
        return Comparing(self.observer, self.seen)

    def findings(self, *, finished: bool = False) -> list[str]:
        rows = self.observer.rows(_FOUND) + (self.observer.rows(_FINISHED) if finished else [])
        return [f"{rule}: run {run_id}: {detail}" for rule, run_id, detail in rows]

    def hints(self, worker_ids: list[str]) -> Hints:
        hands = [(queue, worker_id) for queue in QUEUES for worker_id in worker_ids]
        with self.redis.pipeline(transaction=False) as pipe:
            for queue in QUEUES:
                pipe.lrange(f"queue:{queue}", 0, -1)
                pipe.zrange(f"queue:{queue}:delayed", 0, -1)
            for queue, worker_id in hands:
                pipe.lrange(f"queue:{queue}:processing:{worker_id}", 0, -1)
            found = pipe.execute()
        half = len(QUEUES) * 2
        return Hints(
            dict(zip(QUEUES, found[0:half:2], strict=True)),
            dict(zip(QUEUES, found[1:half:2], strict=True)),
            dict(zip(hands, found[half:], strict=True)),
        )

    def passes(self, seconds: int, worker_ids: list[str], judge: Comparing) -> None:
        self.observer.do(b"SELECT model_pass(make_interval(secs => %(s)s))", {"s": seconds})
        for queue in QUEUES:
            hands = [f"queue:{queue}:processing:{worker_id}" for worker_id in worker_ids]
            self._pass(keys=[f"queue:{queue}", *hands], args=[seconds])
        judge.world = self.observer.look()

    def history(self, world: World) -> str:
        rows = self.observer.rows(
            b"SELECT run_id, string_agg(concat_ws(' ', what, source, '->', target), '; '"
            b" ORDER BY move_id) FROM watch_moves GROUP BY run_id ORDER BY min(move_id)"
        )
        log = dict(rows)
        return "\n".join(
            f"  {run_id} {run['status']}{' parked' * run['parked']}, claim {run['claim_no']},"
            f" serial {run['serial']}, session {run['session_id']}: {log.get(run_id)}"
            for run_id, run in world.runs.items()
        )


def _unheard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Nobody hears what the tasks of a dead process would have said."""
    if not isinstance(context.get("exception"), Crash):
        loop.default_exception_handler(context)
