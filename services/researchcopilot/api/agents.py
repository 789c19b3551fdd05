"""Agents: what workers have registered, and so what a run can ask for."""

from starlette.responses import Response

from researchcopilot.api import views
from researchcopilot.api.operations import Answer, Call, Operation
from researchcopilot.api.render import json_response


async def list_agents(call: Call) -> Response:
    """Every registered agent, by name."""
    found = await call.services.door.catalogue.agents()
    return json_response({"data": [views.AGENT(agent) for agent in found.values()]})


OPERATIONS = (
    Operation(
        "GET",
        "/v1/agents",
        list_agents,
        "The agents that workers have registered, by name. A change shows within two seconds.",
        {200: Answer("All of them", "AgentList")},
        problems=(422, 503),
    ),
)
