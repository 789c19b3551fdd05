"""Who works here: one row for each process start, and the agents that workers have announced."""

from researchcopilot.core.models import AgentInfo, WorkerInfo
from researchcopilot.core.text import dumps
from researchcopilot.storage.db import Database
from researchcopilot.storage.sql import load

_SQL = load("workers")


async def register(db: Database, worker: WorkerInfo) -> None:
    """Announce a worker and its agents; safe twice."""
    agents = sorted(worker.agents, key=lambda agent: agent.name)
    async with db.transaction() as connection:
        await connection.execute(
            _SQL["register"],
            {
                "worker_id": worker.worker_id,
                "queues": dumps(worker.queues),
                "agents": [agent.name for agent in agents],
                "host": worker.host,
                "pid": worker.pid,
                "version": worker.version,
                "pod": worker.pod,
                "pod_uid": worker.pod_uid,
                "pod_namespace": worker.pod_namespace,
                "process_started_at": worker.process_started_at,
            },
        )
        announced = [
            {
                "name": agent.name,
                "version": agent.version,
                "queue": agent.queue,
                "description": agent.description,
                "input_schema": agent.input_schema,
                "max_attempts": agent.max_attempts,
            }
            for agent in agents
        ]
        await connection.execute(_SQL["register_agents"], {"agents": dumps(announced)})


async def stopped(db: Database, worker_id: str) -> None:
    """It leaves with empty hands."""
    await db.execute(_SQL["stop"], {"worker_id": worker_id})


async def known_agents(db: Database) -> list[AgentInfo]:
    """Every agent that a worker has announced, by name."""
    return [AgentInfo(*row) for row in await db.rows(_SQL["agents"])]


async def known_queues(db: Database) -> set[str]:
    """Every queue that an agent names or a worker of the last day serves."""
    return {row[0] for row in await db.rows(_SQL["queues"])}


async def dead_workers(db: Database, *, stale_s: float) -> list[tuple[str, list[str]]]:
    """(worker_id, its queues) of those that left or were not seen for `stale_s` seconds."""
    return [(row[0], row[1]) for row in await db.rows(_SQL["dead"], {"stale_s": stale_s})]


async def prune_workers(db: Database) -> int:
    """Forget workers that were not seen for a day and hold nothing."""
    return await db.execute(_SQL["prune"])
