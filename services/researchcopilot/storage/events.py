"""Events that an agent emits: one Redis stream a run, made only once there is something to say.

Ids are `<claim_no>-<n>` and given explicitly, so that an old claim cannot speak after a new one
and a repeated emit is not there twice: "equal or smaller" means already there or fenced. A stream
is capped and expires; losing it costs a reader the progress, never the result.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from redis.exceptions import ResponseError

from researchcopilot.core.errors import Unavailable
from researchcopilot.storage.queue import Queue

# What Redis answers to an id that is there already, or that a later claim has gone past.
FENCED = "equal or smaller"
KEPT = 1000
KEPT_S = 24 * 3600


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that an agent said. `n` counts within its claim, from 1; `data` is JSON text."""

    run_id: str
    claim_no: int
    n: int
    kind: str
    data: str


async def append(queue: Queue, events: Sequence[Event]) -> None:
    """Add events in order, in one round trip. Raises Unavailable."""
    commands: list[tuple[str, ...]] = []
    for event in events:
        key = queue.key(f"events:{event.run_id}")
        commands.append(
            ("XADD", key, "MAXLEN", "~", str(KEPT), f"{event.claim_no}-{event.n}",
             "kind", event.kind, "data", event.data)
        )  # fmt: skip
        commands.append(("EXPIRE", key, str(KEPT_S)))
    for answer in await queue.all(commands, fenced=True):
        if isinstance(answer, ResponseError) and FENCED not in str(answer):
            raise Unavailable(f"Redis refuses: {answer}")


async def read(
    queue: Queue, run_id: str, after: str = "0-0", limit: int = 100
) -> list[tuple[str, str, str]]:
    """(id, kind, JSON text of data) of what was emitted after that id, oldest first."""
    [found] = await queue.all(
        [("XRANGE", queue.key(f"events:{run_id}"), f"({after}", "+", "COUNT", str(limit))]
    )
    return [(id_, fields["kind"], fields["data"]) for id_, fields in found]
