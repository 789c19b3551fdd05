"""The lines of a document and what each of them is: enough of Markdown to cut it at its joints.

Offsets count characters of the text as it is stored, so that text[start:end] is always what they
say. It never fails: whatever it does not know is text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

MARKDOWN = "text/markdown"
PLAIN = "text/plain"

Kind = Literal["heading", "text", "item", "row", "code", "rule", "blank"]

ITEM = re.compile(r"[ \t]{0,12}(?:[-*+•]|\d{1,3}[.)、])(?:[ \t]+|(?<=、))")
_RULE = re.compile(r" {0,3}(?:-[ \t]{0,3}){3,80}$|(?:\*[ \t]{0,3}){3,80}$|_{3,80}[ \t]*$")
_UNDERLINE = re.compile(r" {0,3}(=+|-{2,})[ \t]*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_FRONT_MATTER_LINES = 200


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its newline. `level` 1 to 6 and `words` for headings only."""

    start: int
    end: int
    kind: Kind
    level: int = 0
    words: str = ""


def outline(body: str, media_type: str) -> list[Line]:
    """Every line of `body` in order. Plain text has no headings, rows or code."""
    spans = list(_spans(body))
    if media_type != MARKDOWN:
        return [Line(start, end, _plain_kind(body[start:end])) for start, end in spans]
    lines: list[Line] = []
    fence = ""
    skipped = _front_matter(body, spans)
    for number, (start, end) in enumerate(spans):
        text = body[start:end]
        if number < skipped:
            lines.append(Line(start, end, "rule"))
        elif fence:
            lines.append(Line(start, end, "code"))
            fence = "" if _closes(text, fence) else fence
        elif opening := _FENCE.match(text):
            lines.append(Line(start, end, "code"))
            fence = opening.group(1)
        elif _UNDERLINE.match(text) and _is_lone_text(lines):
            lines[-1] = _heading(body, lines[-1], 1 if "=" in text else 2)
            lines.append(Line(start, end, "rule"))
        else:
            lines.append(_line(start, end, text))
    return lines


def title_of(body: str, media_type: str, name: str) -> str:
    """The first heading, else the first line with words, else the name; 200 characters at most."""
    lines = outline(body[:100_000], media_type)
    for line in lines:
        if line.kind == "heading" and line.words:
            return line.words[:200]
    for line in lines:
        mark = ITEM.match(body, line.start, line.end) if line.kind == "item" else None
        words = _words(body[mark.end() if mark else line.start : line.end])
        if line.kind in ("text", "item") and words:
            return words[:200]
    return name[:200]


def _spans(body: str) -> Iterator[tuple[int, int]]:
    start = 0
    while start < len(body):
        end = body.find("\n", start)
        end = len(body) if end < 0 else end
        yield start, end
        start = end + 1


def _front_matter(body: str, spans: list[tuple[int, int]]) -> int:
    """How many lines the YAML block at the top takes, with its two `---`; 0 if there is none."""
    if not spans or body[slice(*spans[0])].rstrip() != "---":
        return 0
    for number, (start, end) in enumerate(spans[1:_FRONT_MATTER_LINES], start=1):
        text = body[start:end].rstrip()
        if text in ("---", "..."):
            return number + 1
        if text and not text.startswith((" ", "-", "#")) and ":" not in text:
            return 0
    return 0


def _closes(text: str, fence: str) -> bool:
    stripped = text.strip()
    return len(stripped) >= len(fence) and set(stripped) == {fence[0]}


def _is_lone_text(lines: list[Line]) -> bool:
    """Is the last line a paragraph of one line? Only that can be underlined to a heading."""
    return bool(lines) and lines[-1].kind == "text" and (len(lines) < 2 or lines[-2].kind != "text")


def _heading(body: str, line: Line, level: int) -> Line:
    return replace(line, kind="heading", level=level, words=_words(body[line.start : line.end]))


def _line(start: int, end: int, text: str) -> Line:
    stripped = text.strip()
    marks = len(stripped) - len(stripped.lstrip("#"))
    if 1 <= marks <= 6 and stripped[marks : marks + 1] in ("", " ", "\t"):
        return Line(start, end, "heading", marks, _words(stripped[marks:].rstrip("#")))
    if _RULE.match(text):
        return Line(start, end, "rule")
    if stripped.startswith("|"):
        return Line(start, end, "row")
    return Line(start, end, _plain_kind(text))


def _plain_kind(text: str) -> Kind:
    if not text or text.isspace():
        return "blank"
    return "item" if ITEM.match(text) else "text"


def _words(text: str) -> str:
    """A heading as a person would say it: without the marks of Markdown."""
    return " ".join(text.replace("**", "").replace("`", "").strip("#*> \t").split())
