"""One value against one JSON Schema: `python -m researchcopilot.agents.schema_check` is the process
that does it for others, a line of JSON in and a line out, and that dies of a check which takes too
long. It knows nothing of runs and opens nothing.

`jsonschema`, since agents announce JSON Schema 2020-12 and what is ignored is not refused: smaller
validators stop at draft 7. A schema never makes us fetch anything.
"""

import contextlib
import json
import resource
import signal
import sys
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

Refusal = tuple[str, str]  # the path below the value, and what is wrong there
LIMIT_S = 1.0  # of computing, for one value
MOST = 5  # refusals that are named
_PATH = 200
_MESSAGE = 300
_MEMORY = 128 * 1_048_576


class Told(NamedTuple):
    """What a schema refuses in a value, or why it could not tell."""

    refusals: list[Refusal]
    trouble: str | None = None


def check(value: Any, schema: str) -> Told:
    """At most MOST refusals. Never raises: it is a schema of somebody's agent."""
    try:
        found = islice(_validator(schema).iter_errors(value), MOST)
        return Told(
            [(one.json_path.removeprefix("$")[:_PATH], one.message[:_MESSAGE]) for one in found]
        )
    except Exception as error:
        return Told([], f"it cannot be used: {str(error)[:_MESSAGE] or type(error).__name__}")


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    from jsonschema import validators
    from referencing.jsonschema import EMPTY_REGISTRY

    parsed = json.loads(schema)
    kind = validators.validator_for(parsed, default=validators.Draft202012Validator)
    kind.check_schema(parsed)
    return kind(parsed, registry=EMPTY_REGISTRY)


def main() -> None:
    """Until nobody asks any more. SIGPROF ends a check that is past its time: nothing in Python
    would, while a pattern is tried."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asks
    with contextlib.suppress(OSError):  # where the kernel has to choose, it is not who asks
        Path("/proc/self/oom_score_adj").write_text("1000")
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    memory = _MEMORY if most == resource.RLIM_INFINITY else min(_MEMORY, most)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, most))
    _validator("{}")  # imports everything, before the clock runs
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        told = check(*json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
