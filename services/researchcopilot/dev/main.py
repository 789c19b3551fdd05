"""`researchcopilot dev`: the whole stack on this machine, in the foreground, until Ctrl-C.

Data stays in `.dev` of the working folder. What crashes is started again, and said.
"""

import argparse
import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

from researchcopilot import __version__
from researchcopilot.core import settings as core_settings
from researchcopilot.dev.keys import api_key
from researchcopilot.dev.parts import Part
from researchcopilot.dev.progress import Progress
from researchcopilot.dev.signals import interruptible
from researchcopilot.dev.stack import Plan, Stack
from researchcopilot.dev.supervisor import Supervisor
from researchcopilot.dev.terminal import Terminal, pad
from researchcopilot.dev.users import barrier, server_user

LOOK_EVERY = 0.2


def main(argv: list[str]) -> int:
    options = parse(argv)
    out = Terminal()
    try:
        with interruptible():
            run(options, out)
    except KeyboardInterrupt:
        out.line("stopped; nothing runs any more")
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="researchcopilot dev", description=__doc__)
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="default 2")
    parser.add_argument("--data", type=Path, metavar="DIR", help="data folder, default .dev")
    parser.add_argument(
        "--port",
        type=int,
        metavar="P",
        help="port of the api; default RC_API_PORT, else a free one",
    )
    options = parser.parse_args(argv)
    if not 0 <= options.workers <= 64:
        parser.error("--workers takes 0 to 64")
    if options.port is not None and not 0 <= options.port <= 65535:
        parser.error("--port takes 0 to 65535")
    return options


def run(options: argparse.Namespace, out: Terminal) -> None:
    data, note = (options.data, "") if options.data else default_data()
    port = asked_port(os.environ) if options.port is None else options.port
    with Stack(Plan(data=data, workers=options.workers, api_port=port), Progress(out)) as stack:
        try:
            stack.start()
            for line in summary(stack, api_key(stack), note, out):
                out.line(line)
            follow(stack, out)
        except KeyboardInterrupt:
            out.line("\nstopping: workers put down what they hold, then the servers end …")
            raise


def asked_port(environ: Mapping[str, str]) -> int:
    """RC_API_PORT where it is given; its default would be a fixed port."""
    port = core_settings.load(environ).api.port
    return port if "RC_API_PORT" in environ else 0


def default_data() -> tuple[Path, str]:
    """`.dev` here; as root, where the servers' user may not come, a folder that it can reach."""
    user = server_user()
    blocked = barrier(Path.cwd(), user)
    if blocked is None or user is None:
        return Path(".dev"), ""
    name = hashlib.sha256(str(Path.cwd()).encode()).hexdigest()[:8]
    note = f"not in .dev: the servers run as {user.name}, who may not enter {blocked}"
    return Path("/var/tmp") / f"researchcopilot-dev-{name}", note


def summary(stack: Stack, key: str, note: str, out: Terminal) -> list[str]:
    """What a person needs now, in columns."""
    rows = [
        ("API", stack.api_url),
        ("API key", key),
        ("data", f"{stack.folder} (kept{'; ' + note if note else ''})"),
        ("Postgres", stack.postgres.url()),
        ("Valkey", stack.valkey.url),
        ("logs", f"{stack.folder / 'parts'}/*.log"),
        *((f"health of {part.name}", health_url(part)) for part in stack.parts.values()),
    ]
    wide = max(len(name) for name, _ in rows) + 2
    return [
        "",
        out.tint(f"ResearchCopilot {__version__} runs on this machine.", "bold"),
        "",
        *(f"  {out.tint(pad(name, wide), 'cyan')}{value}" for name, value in rows),
        "",
        "Try it:",
        *(f"  {line}" for line in curl(stack.api_url, key)),
        "",
        "Stop it with Ctrl-C; the data stays. What crashes is started again.",
    ]


def curl(url: str, key: str) -> list[str]:
    """A line that works when it is pasted."""
    body = '{"agent": "echo", "input": {"say": "hello"}}'
    return [
        f"curl -s {url}/v1/runs -H 'Authorization: Bearer {key}' \\",
        f"     -H 'Content-Type: application/json' -d '{body}'",
    ]


def health_url(part: Part) -> str:
    return f"http://127.0.0.1:{part.ports['health']}/readyz"


def follow(stack: Stack, out: Terminal) -> None:
    """Until Ctrl-C."""

    def say(what: str) -> None:
        out.line(f"{out.tint(time.strftime('%H:%M:%S'), 'dim')}  {out.tint(what, 'yellow')}")

    supervisor = Supervisor(stack, say)
    while True:
        supervisor.look()
        time.sleep(LOOK_EVERY)
