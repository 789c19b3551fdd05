"""A run's input against the schema that its agent has registered.

What a schema costs is told by nobody before: a `pattern` can take years over thirty letters,
`uniqueItems` minutes over a legal input, and neither a thread nor a time-out ends that. So only a
short text against a schema without such words is checked here; all else by another process
(`inspector`), which is ended when it takes too long. What cannot be told is let in: the agent will
tell. A schema never makes us fetch anything.
"""

import asyncio
import logging
import sys
from typing import Any

from researchcopilot.agents.inspector import INSPECTOR
from researchcopilot.agents.schema_check import check
from researchcopilot.core.faults import Fault
from researchcopilot.core.models import AgentInfo
from researchcopilot.core.text import dumps

log = logging.getLogger(__name__)
_SHORT = 2000  # characters of a text that is checked sooner than another process is reached
_SMALL = 4000  # of a schema: it is checked itself, which can cost the square of what it is long
# What can make the check of a short text long: all else costs what the schema is long.
_COSTLY = tuple(f'"{word}"' for word in ("pattern", "$ref", "$dynamicRef", "$recursiveRef"))


async def check_input(value: Any, agent: AgentInfo, where: str, faults: list[Fault]) -> None:
    """Adds a fault for each thing in `value` that the agent's schema refuses."""
    if agent.input_schema is None:
        return
    schema = dumps(agent.input_schema)
    if not _is_quick(value, schema):
        told = await INSPECTOR.check(value, schema)
    elif "jsonschema" in sys.modules:
        told = check(value, schema)
    else:  # slow to import, and large; most agents announce no schema
        told = await asyncio.to_thread(check, value, schema)
    if told.trouble is not None:
        log.warning(
            "an input was let in unchecked; of the schema of the agent %s: %s",
            agent.name, told.trouble,
        )  # fmt: skip
    faults += [
        Fault(
            where + path,
            f"is refused by the schema of the agent {agent.name}: {message}",
            "input_refused",
        )
        for path, message in told.refusals
    ]


def _is_quick(value: Any, schema: str) -> bool:
    return (
        isinstance(value, str)
        and len(value) <= _SHORT
        and len(schema) <= _SMALL
        and not any(word in schema for word in _COSTLY)
    )
