"""A run as somebody asks for it, checked and made into one: what the api and the operator share.

Nothing here makes a row. Every fault is found, not only the first; what workers have registered is
asked of the catalogue. The clock of this process only refuses what is plainly wrong: what is due
when is decided by the database.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from researchcopilot.agents.catalogue import Catalogue
from researchcopilot.agents.inputs import check_input
from researchcopilot.core.faults import Fault
from researchcopilot.core.fields import Body, Field, ListOf
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import NewRun
from researchcopilot.core.schemas import Choice, Id, Json, Moment, Number, Pairs, Text, Whole
from researchcopilot.core.text import dumps

YEAR_S = 365 * 86_400
MOST_RUNS = 1000

FIELDS = (
    Field("input", Json(32), "what the agent is asked; JSON, for `research` a question", True),
    Field("agent", Text(1, 200), "one of GET /v1/agents", default="research"),
    Field("metadata", Pairs(16, 64, 512), "kept with the run and given to the agent"),
    Field("queue", Text(1, 200), "where it waits; the agent's queue unless given"),
    Field(
        "on_conflict",
        Choice(("queue", "reject", "parallel", "cancel_previous")),
        "when its session has a run already: wait for its turn, be refused (409), run beside it, "
        "or cancel what has not ended",
        default="queue",
    ),
    Field("max_attempts", Whole(1, 100), "a failing run is tried so often; the agent's own"),
    Field("timeout_s", Number(0.1, 604_800), "one attempt may take so many seconds"),
    Field("deadline", Moment(), "it fails if it has not ended by then; a day after it is due"),
    Field("run_at", Moment(), "not before; at most a year ahead"),
    Field("delay_s", Number(0, YEAR_S), "instead of run_at: not before so many seconds"),
)
SESSION = Field("session_id", Id(), "the conversation; a new one unless given")

NEW_RUN = Body("NewRun", (*FIELDS, SESSION))
NEW_RUN_IN_SESSION = Body("NewRunInSession", FIELDS)
NEW_RUNS = Body(
    "NewRuns", (Field("runs", ListOf(NEW_RUN, 1, MOST_RUNS), "all are accepted or none", True),)
)


@dataclass(frozen=True, slots=True)
class Door:
    """What somebody who lets runs in has to know."""

    catalogue: Catalogue
    max_input_bytes: int


async def new_run(
    door: Door,
    workspace_id: int,
    fields: Mapping[str, Any],
    session_id: str | None,
    where: str,
    faults: list[Fault],
) -> NewRun:
    """The run that these checked fields ask for; of no use if there are faults. `where` is their
    path in what was asked."""
    fits = check_size(door, fields["input"], f"{where}.input", faults)
    _check_times(fields, where, faults)
    catalogue = door.catalogue
    agent = await catalogue.agent(fields["agent"], f"{where}.agent", faults)
    if agent is not None and fits:
        await check_input(fields["input"], agent, f"{where}.input", faults)
    queue = fields["queue"]
    if queue is not None:
        await catalogue.queue(queue, f"{where}.queue", faults)
    else:
        queue = agent.queue if agent else ""  # then there is a fault
    return NewRun(
        run_id=new_id(),
        workspace_id=workspace_id,
        agent=fields["agent"],
        queue=queue,
        input=fields["input"],
        session_id=session_id or new_id(),
        serial=fields["on_conflict"] != "parallel",
        on_conflict=fields["on_conflict"],
        metadata=fields["metadata"] or {},
        max_attempts=fields["max_attempts"] or (agent.max_attempts if agent else 1),
        timeout_s=fields["timeout_s"],
        deadline=fields["deadline"],
        run_at=fields["run_at"],
        delay_s=fields["delay_s"],
    )


def check_size(door: Door, value: Any, where: str, faults: list[Fault]) -> bool:
    """Whether it fits; a fault more if it does not."""
    limit = door.max_input_bytes
    if isinstance(value, str) and len(value) * 6 < limit:
        return True  # cannot be longer, however it is escaped
    size = len(dumps(value).encode())
    if size > limit:
        message = f"must have at most {limit} bytes as JSON; it has {size}"
        faults.append(Fault(where, message, "too_large"))
    return size <= limit


def _check_times(fields: Mapping[str, Any], where: str, faults: list[Fault]) -> None:
    run_at, delay_s, deadline = fields["run_at"], fields["delay_s"], fields["deadline"]
    if run_at is None and delay_s is None and deadline is None:
        return
    now = datetime.now(UTC)
    if run_at is not None and delay_s is not None:
        faults.append(Fault(f"{where}.delay_s", "and run_at exclude each other: send one of them"))
    if run_at is not None and run_at > now + timedelta(seconds=YEAR_S):
        faults.append(Fault(f"{where}.run_at", "must be at most a year (365 days) ahead"))
    if deadline is None:
        return
    due = max(now, run_at or now + timedelta(seconds=delay_s or 0))
    if deadline <= due:
        words = "must be later than the run is due" if due > now else "must be in the future"
        faults.append(Fault(f"{where}.deadline", words))
    elif deadline > now + timedelta(seconds=2 * YEAR_S):
        faults.append(Fault(f"{where}.deadline", "must be at most two years (730 days) ahead"))
