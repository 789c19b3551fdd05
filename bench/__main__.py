"""`python -m bench [NAME…] [--rounds N]`: measure, print a table, write bench/results.json."""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import accept, clock, drain, latency, million, operator, recovery
from bench.measure import Figure, Measured
from researchcopilot import __version__

MEASURES: dict[str, Callable[[int], list[Measured]]] = {
    "drain": drain.measure,
    "accept": accept.measure,
    "latency": latency.measure,
    "clock": clock.measure,
    "recovery": recovery.measure,
    "million": million.measure,
    "operator": operator.measure,
}
RESULTS = Path(__file__).parent / "results.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*MEASURES, []], metavar="NAME",
                        help=f"one or more of: {', '.join(MEASURES)} (default: all)")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many (default: 3)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    arguments = parser.parse_args()
    figures: list[Figure] = []
    for name in arguments.names or MEASURES:
        print(f"{name} …", file=sys.stderr, flush=True)
        for measured in MEASURES[name](arguments.rounds):
            figure = measured.figure
            figures.append(figure)
            print(f"  {figure.name:<58} {figure.median:>12,.2f} {figure.unit:<10} {figure.note}")
    write(arguments.out, figures)
    return 0


def write(path: Path, figures: list[Figure]) -> None:
    document = {
        "version": __version__,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        "command": " ".join(["python -m bench", *sys.argv[1:]]),
        "figures": [figure.as_json() for figure in figures],
    }
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    sys.exit(main())
