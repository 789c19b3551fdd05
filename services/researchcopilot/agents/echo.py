"""echo: gives its input back. For trying out the platform, and for measuring it."""

import asyncio
from typing import Any

from researchcopilot.agents.contract import Context, agent
from researchcopilot.core.errors import BadAgentInput


@agent(description="gives its input back, after `sleep` seconds if the input names them")
async def echo(ctx: Context, input: Any) -> Any:  # noqa: A002
    """`{"sleep": 2, "say": "hi"}` is given back after two seconds."""
    if isinstance(input, dict) and "sleep" in input:
        await _sleep(ctx, input["sleep"])
    return {"echo": input}


async def _sleep(ctx: Context, seconds: Any) -> None:
    if not isinstance(seconds, int | float) or not 0 <= seconds <= 3600:
        raise BadAgentInput(f"sleep is {seconds!r}; give seconds from 0 to 3600.")
    await ctx.emit("sleeping", {"seconds": seconds})
    await asyncio.sleep(seconds)
