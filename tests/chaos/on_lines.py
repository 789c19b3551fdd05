"""Faults of the network between a part and its servers: cut, slow, one-way, an answer lost.

All of it is done by the proxy, and counted by it. Nothing here touches a process.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from tests.chaos.fault import Fault, Strike
from tests.chaos.proxy import Line, Way
from tests.chaos.stage import LINES
from tests.chaos.wiring import POSTGRES, REDIS


def _lines(strike: Strike, server: str | None = None) -> list[Line]:
    return strike.stage.network.of(strike.name, server)


def _cut(strike: Strike) -> int:
    """Both of its lines, some times in a row."""
    return _cut_all(strike, _lines(strike))


def _cut_everybody(strike: Strike, server: str) -> int:
    return _cut_all(strike, strike.stage.network.of(server=server))


def _cut_all(strike: Strike, lines: Sequence[Line]) -> int:
    """A part that has just been killed has no connection yet: it is waited for."""
    cut = 0

    def some() -> bool:
        nonlocal cut
        cut += sum(line.cut() for line in lines)
        return cut > 0

    strike.struck()
    strike.until(some)
    for _ in range(strike.rand.randint(0, 4)):
        time.sleep(strike.rand.uniform(0, 0.3))
        some()
    return cut


def _slow(strike: Strike) -> int:
    return _slow_all(strike, _lines(strike), strike.rand.uniform(0.05, 0.4))


def _slow_everybody(strike: Strike) -> int:
    return _slow_all(strike, strike.stage.network.lines, strike.rand.uniform(0.02, 0.2))


def _slow_all(strike: Strike, lines: Sequence[Line], seconds: float) -> int:
    before = _counted(lines, "delayed")
    strike.struck()
    with ExitStack() as stack:
        for line in lines:
            stack.enter_context(line.slow(seconds))
        time.sleep(strike.leases(0.5, 2.0))
        return strike.grown(lambda: _counted(lines, "delayed"), before)


def _one_way(strike: Strike, server: str | None, way: Way | None) -> int:
    """Either is drawn if it is not given. What was held comes late, or never."""
    chosen = server or strike.rand.choice((POSTGRES, REDIS))
    lines = _lines(strike, chosen)
    way = way or strike.rand.choice(tuple(Way))
    before = _counted(lines, "held")
    late = strike.rand.random() < 0.5
    strike.struck()
    with ExitStack() as stack:
        for line in lines:
            stack.enter_context(line.closed(way, late=late))
        time.sleep(strike.leases(0.5, 2.5))
        return strike.grown(lambda: _counted(lines, "held"), before)


def _answer_lost(strike: Strike) -> int:
    """Of some moves in a row: what was sent again may be lost again."""
    lines = _lines(strike, POSTGRES)
    answers = strike.rand.randint(1, 3)
    before = _counted(lines, "answers lost")
    strike.struck()
    with ExitStack() as stack:
        for line in lines:
            stack.enter_context(line.losing(answers))
        strike.until(lambda: _counted(lines, "answers lost") >= before + answers)
    return _counted(lines, "answers lost") - before


def _counted(lines: Sequence[Line], what: str) -> int:
    return sum(line.counts[what] for line in lines)


def _line(what: str, part: str, touches: str, seen: str, acts: Callable[[Strike], int]) -> Fault:
    return Fault(f"{what}: {part}", (LINES + part,), touches, seen, acts)


PARTS = (
    ("worker", "in its hands"),
    ("api", "just accepted"),
    ("janitor", "waiting"),
    ("scheduler", "delayed"),
)
CUT = tuple(_line("cut off", *part, "connections cut", _cut) for part in PARTS)
CUT_EVERYBODY = (
    Fault("all cut off from Postgres", (), "all", "connections cut",
          partial(_cut_everybody, server=POSTGRES)),
    Fault("all cut off from Redis", (), "waiting", "connections cut",
          partial(_cut_everybody, server=REDIS)),
)  # fmt: skip
SLOW = (
    _line("slow lines", "worker", "in its hands", "chunks late", _slow),
    _line("slow lines", "api", "just accepted", "chunks late", _slow),
    Fault("slow lines: everybody", (), "all", "chunks late", _slow_everybody),
)
ONE_WAY_WORKER = tuple(
    _line(f"one way, {'requests' if way is Way.THERE else 'answers'} of {server}", "worker",
          "in its hands", "chunks held", partial(_one_way, server=server, way=way))
    for server in (POSTGRES, REDIS) for way in Way
)  # fmt: skip
ONE_WAY = (
    *ONE_WAY_WORKER,
    *(
        _line("one way", *part, "chunks held", partial(_one_way, server=None, way=None))
        for part in PARTS[1:]
    ),
)
ANSWER_LOST = tuple(
    _line("commit's answer lost", *part, "answers lost", _answer_lost) for part in PARTS[:3]
)
FAULTS = (*CUT, *CUT_EVERYBODY, *SLOW, *ONE_WAY, *ANSWER_LOST)
