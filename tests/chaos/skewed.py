"""`python -m tests.chaos.skewed SECONDS PART`: a part of the product as a process of its own, whose
view of time is wrong by so many seconds, and jumps by up to two more now and then.

Wall-clock time only, as on a machine whose clock is wrong: time that passes is the same everywhere.
"""

import random
import sys
import threading
import time
from datetime import UTC, datetime, timedelta

import time_machine

from researchcopilot.__main__ import main as front_door

JUMP_S = 2.0


def main(seconds: float, arguments: list[str]) -> int:
    wrong = datetime.now(UTC) + timedelta(seconds=seconds)
    with time_machine.travel(wrong, tick=True) as clock:
        threading.Thread(target=jump_about, args=(clock, seconds), daemon=True).start()
        return front_door(arguments)


def jump_about(clock: time_machine.Traveller, seconds: float) -> None:
    """As a clock that is set by hand, again and again."""
    started, true_start = time.monotonic(), time.time() - seconds
    while True:
        time.sleep(random.uniform(0.1, 0.5))
        true = true_start + time.monotonic() - started
        clock.move_to(true + seconds + random.uniform(-JUMP_S, JUMP_S))


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
