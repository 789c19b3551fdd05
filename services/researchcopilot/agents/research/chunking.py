"""A document cut into chunks at its joints: heading, then paragraph, then sentence.

A chunk is a span of the text within one section, 400 to 800 characters where the section is long
enough, and it starts with the last sentence of the one before it, so that what stands at a seam is
found from both sides. Spans are exact: text[start:end] is the chunk, and each of its sentences.
Nothing but white space, rules, headings and the marks of lists and quotes is left out; a document
of headings alone is one chunk of them.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from researchcopilot.agents.research.words import ABBREVIATIONS
from researchcopilot.core.outline import ITEM, Line, outline

MAX_CHARS = 800
MIN_CHARS = 400
MAX_OVERLAP = 200
SEMICOLON_AFTER = 80
ARROW = " › "

Span = tuple[int, int]

# An end of a sentence: full-width marks always; . ! ? only before white space or the end. Counts
# are bounded, so that a million dots take no longer than other text.
_END = re.compile(r"[。！？；…]+[”’」』）》】*_]*|[.!?]{1,9}[\"'”’)\]*_]{0,4}(?=\s|$)")
_CODE_SPAN = re.compile(r"`[^`\n]{1,200}`")
_LEAD = re.compile(r"^(?:[ \t]*>)+[ \t]*|\s+", re.MULTILINE)
_SOFT = re.compile(r"[，、,;：:）)\s]")


@dataclass(frozen=True, slots=True)
class Chunk:
    """`sentences` are the spans that can be quoted: prose, no code, no rows of a table. `opens`
    says that it starts its section."""

    start: int
    end: int
    heading: str
    sentences: tuple[Span, ...]
    opens: bool


@dataclass(frozen=True, slots=True)
class _Unit:
    """What is never cut apart: a sentence, a row of a table, lines of code."""

    start: int
    end: int
    prose: bool
    opens: bool  # first of its paragraph: a good place to start a chunk


def chunks(body: str, media_type: str) -> Iterator[Chunk]:
    """The chunks of a document in order."""
    lines = outline(body, media_type)
    found = False
    for heading, section in sections(lines):
        opens = True
        for units in _packed(list(_units(body, section))):
            found = True
            yield _chunk(units, heading, opens)
            opens = False
    if not found:
        yield from _headings_only(body, lines)


def sections(lines: Iterable[Line]) -> Iterator[tuple[str, list[Line]]]:
    """(path of headings, its lines) of each section, without the heading lines themselves."""
    path: list[tuple[int, str]] = []
    for is_heading, group in groupby(lines, key=lambda line: line.kind == "heading"):
        if not is_heading:
            yield ARROW.join(words for _, words in path), list(group)
            continue
        for line in group:
            path = [(level, words) for level, words in path if level < line.level]
            path.append((line.level, line.words))


def sentences(body: str, start: int, end: int) -> Iterator[Span]:
    """The sentences of body[start:end], trimmed of white space and of quote marks of Markdown."""
    in_code = {at for code in _CODE_SPAN.finditer(body, start, end) for at in range(*code.span())}
    begin = start
    for found in _END.finditer(body, start, end):
        if found.start() in in_code or _is_no_end(body, begin, found):
            continue
        yield from _trimmed(body, begin, found.end())
        begin = found.end()
    yield from _trimmed(body, begin, end)


def _is_no_end(body: str, begin: int, found: re.Match[str]) -> bool:
    """Is this dot part of an abbreviation, an initial or a number of a list? A semicolon is an
    end only once the sentence is long: its halves are rarely worth reading apart."""
    if found.group() == "；":
        return found.end() - begin < SEMICOLON_AFTER
    if found.group() != ".":
        return False
    before = body[max(begin, found.start() - 12) : found.start()]
    word = re.split(r"[\s(\[（“\"]", before)[-1]
    if word.casefold() in ABBREVIATIONS or (len(word) == 1 and word.isalpha() and word.isupper()):
        return True
    return word.isdigit() and not before[: -len(word)].strip() and found.start() - begin < 6


def _trimmed(body: str, start: int, end: int) -> Iterator[Span]:
    while (lead := _LEAD.match(body, start, end)) is not None:
        start = lead.end()
    while end > start and body[end - 1].isspace():
        end -= 1
    if end > start:
        yield start, end


def _units(body: str, section: list[Line]) -> Iterator[_Unit]:
    for prose, lines in _blocks(section):
        if prose:
            yield from _prose(body, lines[0].start, lines[-1].end)
        else:
            yield from _verbatim(body, lines)


def _blocks(section: list[Line]) -> Iterator[tuple[bool, list[Line]]]:
    """(is it prose?, lines): paragraphs, list items with their continuation, rows, code."""
    block: list[Line] = []
    for line in section:
        joins = block and line.kind == ("text" if block[0].kind == "item" else block[0].kind)
        if joins and line.kind != "item":
            block.append(line)
            continue
        if block:
            yield block[0].kind in ("text", "item"), block
        block = [line] if line.kind in ("text", "item", "row", "code") else []
    if block:
        yield block[0].kind in ("text", "item"), block


def _prose(body: str, start: int, end: int) -> Iterator[_Unit]:
    item = ITEM.match(body, start, end)
    first = True
    for begin, finish in sentences(body, item.end() if item else start, end):
        for a, b in _bounded(body, begin, finish):
            yield _Unit(a, b, True, first)
            first = False
    if first:  # a lone list mark: kept, since nothing but white space may be left out
        for begin, finish in _trimmed(body, start, end):
            yield _Unit(begin, finish, False, True)


def _verbatim(body: str, lines: list[Line]) -> Iterator[_Unit]:
    """Rows and code, a few lines to a unit."""
    first = True
    start = lines[0].start
    for line, after in zip(lines, [*lines[1:], None], strict=True):
        if after is not None and after.end - start <= MAX_CHARS // 2:
            continue
        for begin, finish in _trimmed(body, start, line.end):
            for a, b in _bounded(body, begin, finish):
                yield _Unit(a, b, False, first)
                first = False
        start = after.start if after else line.end


def _bounded(body: str, start: int, end: int) -> Iterator[Span]:
    """The span, cut at commas or white space into pieces that fit into a chunk."""
    while end - start > MAX_CHARS:
        cut = start + MAX_CHARS
        for found in _SOFT.finditer(body, start + MIN_CHARS, cut):
            cut = found.end()
        yield from _trimmed(body, start, cut)
        start = cut
    yield from _trimmed(body, start, end)


def _packed(units: list[_Unit]) -> Iterator[list[_Unit]]:
    """Units in groups of equal size, so that a section does not end in a crumb."""
    if not units:
        return
    total = units[-1].end - units[0].start
    goal = max(MIN_CHARS, total / -(-total // (MAX_CHARS - MAX_OVERLAP)))
    group: list[_Unit] = []
    for unit in units:
        rest_fits = bool(group) and units[-1].end - group[0].start <= MAX_CHARS
        if group and not rest_fits and _is_full(group, unit, goal):
            yield group
            group = _overlap(group, unit)
        group.append(unit)
    yield group


def _is_full(group: list[_Unit], unit: _Unit, goal: float) -> bool:
    size = group[-1].end - group[0].start
    if unit.end - group[0].start > MAX_CHARS:
        return True
    return size >= goal or (size >= MIN_CHARS and unit.opens and size >= goal * 0.8)


def _overlap(group: list[_Unit], unit: _Unit) -> list[_Unit]:
    """The last sentence once more, if it leads into the next unit and leaves room for it."""
    last = group[-1]
    fits = last.end - last.start <= MAX_OVERLAP and unit.end - last.start <= MAX_CHARS
    return [last] if last.prose and fits and len(group) > 1 else []


def _chunk(units: list[_Unit], heading: str, opens: bool) -> Chunk:
    quotable = tuple((unit.start, unit.end) for unit in units if unit.prose)
    return Chunk(units[0].start, units[-1].end, heading, quotable, opens)


def _headings_only(body: str, lines: list[Line]) -> Iterator[Chunk]:
    headings = [line for line in lines if line.kind == "heading" and line.words]
    for start, end in _bounded(body, headings[0].start, headings[-1].end) if headings else ():
        yield Chunk(start, end, "", (), True)
