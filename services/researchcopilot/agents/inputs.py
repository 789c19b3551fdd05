"""A run's input against the schema that its agent has registered.

`jsonschema`, since agents announce JSON Schema 2020-12 and what is ignored is not refused: smaller
validators stop at draft 7. It is imported when a schema is first met, in a thread: it is slow to
import and large, and most agents announce no schema. A schema never makes us fetch anything.
"""

import asyncio
import json
import logging
import sys
from functools import lru_cache
from itertools import islice
from typing import Any

from researchcopilot.core.faults import Fault
from researchcopilot.core.models import AgentInfo
from researchcopilot.core.text import dumps

MOST = 5  # faults that are named
_MESSAGE = 300
_SHORT = 2000  # characters of a text that is checked sooner than a thread is reached
log = logging.getLogger(__name__)


async def check_input(value: Any, agent: AgentInfo, where: str, faults: list[Fault]) -> None:
    """Adds a fault for each thing in `value` that the agent's schema refuses."""
    if agent.input_schema is not None:
        schema = dumps(agent.input_schema)
        if isinstance(value, str) and len(value) <= _SHORT and "jsonschema" in sys.modules:
            faults += _refused(value, schema, agent.name, where)
        else:
            faults += await asyncio.to_thread(_refused, value, schema, agent.name, where)


def _refused(value: Any, schema: str, agent: str, where: str) -> list[Fault]:
    try:
        found = islice(_validator(schema).iter_errors(value), MOST)
        return [
            Fault(
                where + error.json_path.removeprefix("$"),
                f"is refused by the schema of the agent {agent}: {error.message[:_MESSAGE]}",
                "input_refused",
            )
            for error in found
        ]
    except Exception as error:  # a schema of somebody's agent: what it cannot tell, the agent will
        log.warning("the input schema of the agent %s cannot be used: %s", agent, error)
        return []


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    from jsonschema import validators
    from referencing.jsonschema import EMPTY_REGISTRY

    parsed = json.loads(schema)
    kind = validators.validator_for(parsed, default=validators.Draft202012Validator)
    kind.check_schema(parsed)
    return kind(parsed, registry=EMPTY_REGISTRY)
