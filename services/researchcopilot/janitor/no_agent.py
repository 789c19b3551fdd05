"""Duty: show the runs that wait because a worker took them that lacks their agent. Nothing is
moved here: they come back every half minute until a worker has it, or until their deadline."""

from researchcopilot.janitor.metrics import NO_AGENT
from researchcopilot.storage.db import Database
from researchcopilot.storage.waiting import without_agent


async def count_without_agent(db: Database) -> None:
    waiting = await without_agent(db)
    NO_AGENT.clear()  # an agent that nobody lacks any more has no series
    for agent, number in waiting.items():
        NO_AGENT.labels(agent).set(number)
