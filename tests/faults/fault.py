"""A fault that cost others their jobs: what protects us, which line does, and which test knows it.

The line has to stand exactly once in its file, so that nobody has to guess which one is meant; the
test is a pytest node id. Where the line cannot simply go (it is a condition, or all of a block)
`instead` takes its place. Nothing here runs anything: see `mutant`.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


class BadFault(Exception):
    """An entry of the catalogue that does not fit the tree (any more), and what to do."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`source` is where it was seen, `guard` what keeps it from us, `red` how the test fails once
    `line` is gone: the name of the exception, since any other failure proves nothing."""

    number: int
    title: str
    source: str
    guard: str
    test: str
    file: str
    line: str
    instead: str = ""
    red: str = "AssertionError"

    @property
    def mutation(self) -> str:
        return f"{self.line}  →  {self.instead}" if self.instead else self.line

    @property
    def function(self) -> str:
        """The name of the test without its parameters."""
        return self.test.rpartition("::")[2].partition("[")[0]

    def mutated(self, text: str) -> str:
        """The file's text without the line. Raises BadFault."""
        lines = text.splitlines(keepends=True)
        places = [number for number, line in enumerate(lines) if line.strip() == self.line]
        if len(places) != 1:
            raise BadFault(
                f"fault {self.number}: this line stands {len(places)} times in {self.file}, and "
                f"has to stand there once: {self.line!r}. Say in tests/faults/ which line it is now"
            )
        line = lines[places[0]]
        indent = line[: len(line) - len(line.lstrip())]
        lines[places[0]] = f"{indent}{self.instead}\n" if self.instead else ""
        changed = "".join(lines)
        if self.file.endswith(".py"):
            try:
                ast.parse(changed)
            except SyntaxError as error:
                raise BadFault(
                    f"fault {self.number}: {self.file} is no Python without that line "
                    f"(line {error.lineno}: {error.msg}). Say what stands there instead"
                ) from error
        return changed


def check(fault: Fault, root: Path = ROOT) -> None:
    """Does it fit this tree? Raises BadFault."""
    file, test = root / fault.file, root / fault.test.partition("::")[0]
    for path in (file, test):
        if not path.is_file():
            raise BadFault(f"fault {fault.number}: there is no {path.relative_to(root)} any more")
    fault.mutated(file.read_text(encoding="utf-8"))
    if not re.search(rf"^(async )?def {fault.function}\(", test.read_text("utf-8"), re.MULTILINE):
        raise BadFault(f"fault {fault.number}: there is no test {fault.test} any more")


def chosen(faults: Sequence[Fault], numbers: Sequence[int]) -> list[Fault]:
    """Those with these numbers; all of them if none is named. Raises BadFault."""
    known = {fault.number for fault in faults}
    if unknown := sorted(set(numbers) - known):
        raise BadFault(f"there is no fault {unknown[0]}: they are 1 to {max(known)}")
    return [fault for fault in faults if not numbers or fault.number in numbers]
