"""The deck: every fault that strikes in a chaos test, the short one's share, and the last ones.

What a fault is, is told in `fault`; what each does, in `on_parts`, `on_servers` and `on_lines`.
"""

from collections.abc import Iterator, Sequence
from random import Random

from tests.chaos import on_lines, on_parts, on_servers
from tests.chaos.fault import Fault

FAULTS = (*on_parts.FAULTS, *on_servers.FAULTS, *on_lines.FAULTS)
# A short test has one of each family; those that only kill and restart are seen in many others.
SHORT = (
    *on_parts.KILLED[:3],
    on_parts.KILLED[6],
    on_parts.TWO_JANITORS,
    on_parts.WORKERS_CLOCK,
    on_servers.FORGETS[0],
    on_servers.REFUSES[0],
    on_servers.REFUSES[2],
    on_servers.POSTGRES[2],
    *on_lines.CUT_EVERYBODY,
    *on_lines.SLOW[1:2],
    *on_lines.ONE_WAY[1:3],
    *on_lines.ANSWER_LOST[:2],
)
# After all others once more: a Redis that is wiped later would be written anew, and with it would
# go what a dead worker left in its list, and come what was never pushed.
LAST = (on_parts.WORKER_KILLED, on_servers.PUSHES_LOST)


def shuffled(faults: Sequence[Fault], rand: Random) -> Iterator[Fault]:
    """Endless: all of them in random order, then all again in another."""
    while True:
        yield from rand.sample(faults, len(faults))
