"""The front door: `python -m researchcopilot <part>`. Each part is imported only when called."""

import importlib
import sys
from collections.abc import Callable
from typing import NamedTuple

from researchcopilot import __version__
from researchcopilot.core.errors import ConfigError, ResearchCopilotError


class Part(NamedTuple):
    module: str
    extra: str | None
    doc: str


PARTS = {
    "api": Part("researchcopilot.api.main", "api", "accepts runs over HTTP and answers"),
    "worker": Part("researchcopilot.worker.main", "agent", "takes runs and executes agents"),
    "scheduler": Part("researchcopilot.scheduler.main", None, "fires schedules, moves due runs"),
    "janitor": Part("researchcopilot.janitor.main", None, "takes back what died, mends Redis"),
    "operator": Part("researchcopilot.operator.main", "operator", "a Pod died: its runs come back"),
    "migrate": Part("researchcopilot.cli.migrate", None, "brings the database to this version"),
    "keys": Part("researchcopilot.cli.keys", None, "API keys: create, list, revoke"),
    "corpus": Part("researchcopilot.cli.corpus", None, "documents: add, list"),
    "workspaces": Part("researchcopilot.cli.workspaces", None, "workspaces: list, set their zone"),
    "ensure-key": Part("researchcopilot.cli.ensure_key", None, "makes the database know a key"),
    "doctor": Part("researchcopilot.cli.doctor", None, "is all there, and if not, what to do"),
    "settings": Part("researchcopilot.cli.settings", None, "every setting with its default"),
    "dev": Part("researchcopilot.dev.main", "dev", "the whole stack on this machine, until Ctrl-C"),
    "demo": Part("researchcopilot.dev.demo", "dev", "three questions, and a worker that is killed"),
}


def usage() -> str:
    lines = [f"researchcopilot {__version__}", "", "usage: researchcopilot <part> [options]", ""]
    lines += [f"  {name:<10} {part.doc}" for name, part in PARTS.items()]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 done, 1 failed, 2 called wrongly or badly configured."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] in ("--version", "version"):
        print(__version__)
        return 0
    part = PARTS.get(arguments[0])
    if part is None:
        print(f"There is no part {arguments[0]!r}.\n\n{usage()}", file=sys.stderr)
        return 2
    return _call(part, arguments[1:])


def _call(part: Part, arguments: list[str]) -> int:
    try:
        entry: Callable[[list[str]], int] = importlib.import_module(part.module).main
    except ModuleNotFoundError as error:
        if part.extra is None or (error.name or "").startswith("researchcopilot"):
            raise
        print(
            f"{error.name} is not installed: pip install 'researchcopilot[{part.extra}]'",
            file=sys.stderr,
        )
        return 2
    try:
        return entry(arguments)
    except ConfigError as error:
        print(f"researchcopilot: {error}", file=sys.stderr)
        return 2
    except ResearchCopilotError as error:
        print(f"researchcopilot: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
