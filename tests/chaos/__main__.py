"""`make chaos`: thousands of runs while everything is killed, cut off, filled up and restarted.

    python -m tests.chaos [--seed N] [--runs N] [--seconds S] [--faults N] [--lease S]
                          [--only runs|moves|ticks] [--logs DIR]

Three acts, each on real servers of its own, every part a process: `runs` (all parts under every
fault, each fault at least once however short it is), `moves` (the moves of runs under real
concurrency) and `ticks` (three schedulers with wrong clocks: each tick exactly once). --seconds
and --runs scale all of it. Faults come from the seed, and each must be seen to have happened.

Exit code 1 if anything was lost, done twice, stuck, or a fault had no effect; then the seed, the
histories of the runs, and a folder with every log are told. Apart from it, in nine minutes:
`python -m tests.chaos.zones` compares cron in every time zone with a second reckoning.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from tests.chaos import acts
from tests.chaos.acts import Act
from tests.chaos.driver import Options
from tests.chaos.runs import run

from researchcopilot.dev.signals import interruptible

ACTS = ("runs", "moves", "ticks")


def parse(argv: list[str]) -> argparse.Namespace:
    default = Options()
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=layout
    )
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--runs", type=int, default=default.runs)
    parser.add_argument("--seconds", type=float, default=default.seconds, help="of the act `runs`")
    parser.add_argument("--faults", type=int, help="at least; by default as many as --seconds ask")
    parser.add_argument("--lease", type=float, default=default.lease_s, dest="lease_s")
    parser.add_argument("--only", choices=ACTS, help="one act alone")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="where logs stay if it fails")
    return parser.parse_args(argv)


class Programme:
    """What is played. All that is said is kept for the folder of a failure."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        default = Options()
        self.share = given.seconds / default.seconds
        faults = round(default.faults * self.share) if given.faults is None else given.faults
        self.options = Options(
            seed=given.seed, runs=given.runs, seconds=given.seconds, faults=faults,
            lease_s=given.lease_s,
        )  # fmt: skip
        name = f"researchcopilot-chaos-seed-{given.seed}-{datetime.now():%Y%m%d-%H%M%S}"
        self.logs: Path = given.logs or Path(tempfile.gettempdir()) / name
        self._said: list[str] = []

    def say(self, words: str) -> None:
        self._said.append(words)
        print(words, flush=True)

    def play(self) -> int:
        """The exit code."""
        played: list[Act] = []
        for name in ACTS:
            if self.given.only in (None, name):
                for act in self._act(name):
                    self.say(act.text)
                    played.append(act)
        self.say("\n".join(["", *acts.table(played)]))
        broken = sum(act.broken for act in played)
        if not broken:
            self.say("nothing lost, nothing twice, nothing stuck, every fault seen")
            return 0
        self.say(f"{broken} faults of the product with seed {self.given.seed}; all logs and this "
                 f"account are in {self.logs}")  # fmt: skip
        self.logs.mkdir(parents=True, exist_ok=True)
        (self.logs / "account.txt").write_text("\n".join(self._said) + "\n")
        return 1

    def _act(self, name: str) -> Iterator[Act]:
        options = self.options
        if name == "moves":
            self.say("\nmoves: several processes on a few hot sessions")
            return acts.moves(options.seed, self.share)
        if name == "ticks":
            self.say("\nticks: three schedulers whose clocks are wrong")
            return acts.ticks_(options.seed, self.share)
        self.say(f"runs, seed {options.seed}: {options.runs:,} in {options.seconds:g} s, at least "
                 f"{options.faults} faults, leases of {options.lease_s:g} s")  # fmt: skip
        return self._runs()

    def _runs(self) -> Iterator[Act]:
        began = time.monotonic()
        result = run(self.options, self.say, self.logs)
        kinds = {blow.fault.name for blow in result.course.blows}
        did = (f"{result.course.tally.accepted.count:,} runs, {len(result.course.blows)} faults "
               f"of {len(kinds)} kinds")  # fmt: skip
        seconds = time.monotonic() - began
        yield Act("runs", did, len(result.findings), seconds, result.text)


def main(argv: list[str]) -> int:
    programme = Programme(parse(argv))
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)  # that Postgres is away is meant
    try:
        with interruptible():
            return programme.play()
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped; nothing runs any more")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
