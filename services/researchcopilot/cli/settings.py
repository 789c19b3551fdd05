"""`python -m researchcopilot settings`: every setting, its default, its meaning; `*` where set."""

import os

from researchcopilot.core.settings import describe, load


def main(argv: list[str]) -> int:
    load(os.environ)
    for name, default, meaning in describe():
        mark = "*" if name in os.environ else " "
        print(f"{mark} {name:<28} {os.environ.get(name, default) or '-':<28} {meaning}")
    return 0
