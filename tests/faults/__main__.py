"""`make mutate`: takes away, one at a time, the lines that keep the known faults from us, and sees
the test of each turn red.

    python -m tests.faults [NUMBER…] [--jobs N] [--list]

The tests run first as they are, and have to be green. Exit code 1 if one is not, or stays green
without its line: then nothing protects that line, or the line protects nothing.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.faults.catalogue import FAULTS
from tests.faults.fault import BadFault, Fault, check, chosen
from tests.faults.mutant import LIMIT_S, Copy, Seen

from researchcopilot.dev.signals import interruptible
from researchcopilot.dev.terminal import Terminal, cut, pad


@dataclass(frozen=True, slots=True)
class Proof:
    """A fault, and its test with and without the line."""

    fault: Fault
    before: Seen
    after: Seen

    @property
    def good(self) -> bool:
        return self.before.what == "green" and self.after.what == self.fault.red

    @property
    def verdict(self) -> str:
        what = "red" if self.good else f"NOT PROVEN: {self.before.what}, then {self.after.what}"
        return f"fault {self.fault.number} {what}"


def prove(faults: Sequence[Fault], jobs: int, say: Callable[[str], None]) -> list[Proof]:
    """As they are in one go, then each without its line, `jobs` at a time."""
    with tempfile.TemporaryDirectory(prefix="mutate-") as name:
        made = [Copy(Path(name) / str(number)) for number in range(jobs)]
        made[0].check()
        nodes = list(dict.fromkeys(fault.test for fault in faults))
        say(f"{len(nodes)} tests as they are …")
        before = made[0].run(nodes, LIMIT_S + 20 * len(nodes))
        copies: SimpleQueue[Copy] = SimpleQueue()
        for copy in made:
            copies.put(copy)

        def one(fault: Fault) -> Proof:
            copy = copies.get()
            try:
                with copy.without(fault):
                    after = copy.run([fault.test])[fault.test]
            finally:
                copies.put(copy)
            return Proof(fault, before[fault.test], after)

        with ThreadPoolExecutor(jobs) as pool:
            proofs: list[Proof] = []
            try:
                for done in as_completed([pool.submit(one, fault) for fault in faults]):
                    proofs.append(done.result())
                    say(f"{len(proofs)} of {len(faults)}: {proofs[-1].verdict}")
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for copy in made:
                    copy.stop()
                raise
    return sorted(proofs, key=lambda proof: proof.fault.number)


def table(proofs: Sequence[Proof], terminal: Terminal) -> list[str]:
    """A row for each, and under it the test and the line."""
    rows = [("no", "fault", "as it is", "without the line", "seconds")]
    for proof in proofs:
        fault, before, after = proof.fault, proof.before, proof.after
        rows.append((
            str(fault.number), fault.title, before.what,
            f"red ({after.what})" if proof.good else cut(after.what, 40),
            f"{before.seconds:.1f} / {after.seconds:.1f}",
        ))  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    head, *lines = ("  ".join(map(pad, row, widths)).rstrip() for row in rows)
    told = [terminal.tint(head, "bold")]
    for line, proof in zip(lines, proofs, strict=True):
        told.append(terminal.tint(line, "green" if proof.good else "red"))
        told.append(terminal.tint(f"    {proof.fault.test}", "dim"))
        told.append(terminal.tint(f"    {proof.fault.file}: {proof.fault.mutation}", "dim"))
    return told


def listed(faults: Sequence[Fault]) -> list[str]:
    return [
        line
        for fault in faults
        for line in (
            f"{fault.number:>3}  {fault.title} ({fault.source})",
            f"     guard  {fault.guard}",
            f"     test   {fault.test}",
            f"     line   {fault.file}: {fault.mutation}",
        )
    ]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=__doc__, formatter_class=layout
    )
    parser.add_argument("numbers", nargs="*", type=int, metavar="NUMBER",
                        help="these faults (default: all)")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2),
                        help="so many at a time, each with servers of its own")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    options, terminal = parse(argv), Terminal()
    started = time.monotonic()
    try:
        faults = chosen(FAULTS, options.numbers)
        for fault in faults:
            check(fault)
        if options.list:
            terminal.line("\n".join(listed(faults)))
            return 0
        with interruptible():
            proofs = prove(faults, min(max(1, options.jobs), len(faults)), terminal.line)
    except BadFault as error:
        print(f"{error}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        terminal.line("stopped; nothing runs any more")
        return 130
    terminal.line("\n".join(["", *table(proofs, terminal), ""]))
    bad = [proof for proof in proofs if not proof.good]
    for proof in bad:
        shown = proof.before if proof.before.what != "green" else proof.after
        terminal.line(f"fault {proof.fault.number}: {shown.what}\n{shown.text[-3000:]}\n")
    seconds = time.monotonic() - started
    terminal.line(
        f"{len(proofs) - len(bad)} of {len(proofs)} lines are protected ({seconds:.0f} s)"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
