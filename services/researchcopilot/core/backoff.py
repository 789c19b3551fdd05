"""How long to wait before trying again. Pure: the random number comes in."""

import random
from collections.abc import Iterator


def full_jitter(attempt: int, *, base: float, cap: float, rand: float) -> float:
    """Seconds before attempt + 1: uniform in [0, min(cap, base * 2^(attempt - 1))].

    Full jitter spreads a herd of failures best; see the AWS architecture blog,
    "Exponential Backoff And Jitter". `rand` is in [0, 1).
    """
    ceiling: float = min(cap, base * 2.0 ** min(max(attempt - 1, 0), 60))
    return rand * ceiling


def reconnect_delays(base: float = 0.05, cap: float = 2.0) -> Iterator[float]:
    """Endless waits for a server that went away: 0.05, 0.1, … 2 s, each between half and whole."""
    wait = base
    while True:
        yield wait * (0.5 + random.random() / 2)
        wait = min(cap, wait * 2)
