"""A stage for the api's tests of schedules, with agents whose schemas are strict or broken; and
making schedules there."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from tests.conftest import Servers
from tests.services.api_server import AGENTS, Stage, register, stage

from researchcopilot.core.models import AgentInfo

# A schema whose last keyword is one that validators of older drafts pass over.
STRICT = AgentInfo(
    "strict", "1", "slow", "", {
        "type": "object",
        "properties": {"question": {"type": "string", "minLength": 3}},
        "required": ["question"],
        "unevaluatedProperties": False,
    },
)  # fmt: skip
BROKEN = AgentInfo("broken", "1", "runs", "", {"type": "nonsense"})


@contextmanager
def scheduling_stage(servers: Servers) -> Iterator[Stage]:
    """Where these agents are registered."""
    with stage(servers) as made:
        made.run(lambda db: register(db, (*AGENTS, STRICT, BROKEN)))
        yield made


def body(**fields: Any) -> dict[str, Any]:
    made = {"name": str(uuid.uuid4()), "agent": "echo", "input": "why?", **fields}
    if not {"cron", "interval_s"} & made.keys():
        made["cron"] = "0 8 * * *"
    return made


def make(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/schedules", json=body(**fields))
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def path(schedule: dict[str, Any], more: str = "") -> str:
    return f"/v1/schedules/{schedule['schedule_id']}{more}"
