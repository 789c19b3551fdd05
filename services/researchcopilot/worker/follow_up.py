"""What is to come of a run that succeeded, as its agent's options say: a digest some minutes later,
a memory for later runs. It goes with the outcome and is committed with it, see finish_1.

Ids are made here, before the finish is sent, so that it can be sent twice. A success is never lost
over this: an agent whose `remember` fails leaves no memory, and what it gives is cut to what
Postgres takes.
"""

import json
import logging
from dataclasses import replace
from typing import Any

from researchcopilot.agents.contract import Remember
from researchcopilot.agents.registry import Agent
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Claim, Outcome
from researchcopilot.core.settings import JobSettings
from researchcopilot.core.text import clean_text, dumps

log = logging.getLogger(__name__)
DIGEST, SYSTEM = "digest", "system"  # the agent that writes digests, and the queue of upkeep
ATTEMPTS = 5
QUESTION, TEXT = 2_000, 8_000  # characters of a memory
TOKEN, TOKENS = 64, 2_000  # of one token, and how many


def with_follow_up(
    outcome: Outcome | None, agent: Agent, claim: Claim, jobs: JobSettings
) -> Outcome | None:
    """The same outcome; a success with what follows it."""
    if outcome is None or outcome.kind != "succeeded" or outcome.result is None:
        return outcome
    asked: dict[str, Any] = {}
    if agent.options.digest and claim.session_id is not None:
        asked["run"] = _digest(jobs)
    if agent.options.remember is not None:
        memory = _memory(agent.options.remember, claim, outcome.result, jobs)
        asked.update({"memory": memory} if memory else {})
    return replace(outcome, follow_up=dumps(asked)) if asked else outcome


def _digest(jobs: JobSettings) -> dict[str, Any]:
    return {
        "run_id": new_id(),
        "agent": DIGEST,
        "queue": SYSTEM,
        "delay_s": jobs.digest_delay_s,
        "max_attempts": ATTEMPTS,
    }


def _memory(
    remember: Remember, claim: Claim, result: str, jobs: JobSettings
) -> dict[str, Any] | None:
    try:
        found = remember(claim.input, json.loads(result))
        if found is None or not found.text.strip():
            return None
        tokens = dict.fromkeys(clean_text(token) for token in found.tokens if token)
        return {
            "memory_id": new_id(),
            "question": clean_text(found.question, QUESTION),
            "text": clean_text(found.text, TEXT),
            "tokens": [token for token in tokens if len(token) <= TOKEN][:TOKENS],
            "days": jobs.memory_days,
        }
    except Exception:
        log.exception("what the agent would remember of this run cannot be kept; it goes without")
        return None
