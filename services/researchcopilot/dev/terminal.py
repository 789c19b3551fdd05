"""Text for people: colours only where a terminal is there, columns that hold also with CJK."""

import io
import os
import sys
import unicodedata
from typing import Final, TextIO

_CODES: Final = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34",
    "magenta": "35", "cyan": "36",
}  # fmt: skip


def width(text: str) -> int:
    """Columns that a terminal gives to `text`: wide characters take two, combining ones none."""
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def pad(text: str, columns: int) -> str:
    return text + " " * max(columns - width(text), 0)


def cut(text: str, columns: int) -> str:
    """At most so many columns; what is cut ends with an ellipsis."""
    if width(text) <= columns:
        return text
    kept, used = "", 1
    for character in text:
        used += _columns(character)
        if used > columns:
            break
        kept += character
    return kept.rstrip() + "…"


def wrap(text: str, columns: int) -> list[str]:
    """Lines of at most so many columns, broken at spaces and between CJK characters."""
    lines, line = [], ""
    for piece in _pieces(text):
        if line and width(line + piece.rstrip()) > columns:
            lines.append(line.rstrip())
            line = ""
        line += piece if line else piece.lstrip()
    return [*lines, line.rstrip()] if line.strip() else lines


# These never begin a line in Chinese typesetting.
_CLOSING: Final = "，。、；：？！）》」』”’…,.;:?!)]}"


def _pieces(text: str) -> list[str]:
    """Words with the spaces after them; each wide character alone, closing marks with the one
    before."""
    pieces: list[str] = []
    for character in text:
        if pieces and _belongs_to(pieces[-1][-1], character):
            pieces[-1] += character
        else:
            pieces.append(character)
    return pieces


def _belongs_to(before: str, character: str) -> bool:
    if character.isspace() or character in _CLOSING:
        return True
    return not before.isspace() and _columns(before) == 1 and _columns(character) == 1


class Terminal:
    """Where lines are written to; knows whether a person looks."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stdout
        if isinstance(self.stream, io.TextIOWrapper):
            self.stream.reconfigure(errors="replace")  # a terminal without Chinese shows "?"
        self.colour = (
            self.stream.isatty()
            and "NO_COLOR" not in os.environ
            and os.environ.get("TERM") != "dumb"
        )

    @property
    def columns(self) -> int:
        """Of a terminal; 100 for a file."""
        try:
            return min(max(os.get_terminal_size(self.stream.fileno()).columns, 60), 120)
        except (OSError, ValueError):
            return 100

    def tint(self, text: str, *styles: str) -> str:
        if not self.colour or not styles:
            return text
        codes = ";".join(_CODES[style] for style in styles)
        return f"\x1b[{codes}m{text}\x1b[0m"

    def line(self, text: str = "") -> None:
        print(text, file=self.stream, flush=True)
