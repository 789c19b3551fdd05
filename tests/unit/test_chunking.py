"""Chunks: exact spans, nothing lost, within one section, cut at sentences."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from researchcopilot.agents.research.chunking import (
    MAX_CHARS,
    MIN_CHARS,
    Chunk,
    chunks,
    sentences,
)
from researchcopilot.core.outline import ITEM, MARKDOWN, PLAIN, outline

LINES = st.sampled_from(
    [
        "# Heading one",
        "## 标题二",
        "Setext",
        "===",
        "---",
        "",
        "  ",
        "A sentence here. And another one, e.g. this! Version 3.11 is out.",
        "中文的句子。第二句！第三句？还有；分号",
        "长" * 900,
        "word " * 200,
        "- item one. Two.",
        "1. first",
        "- ",
        "> quoted text. More.",
        "| a | b |",
        "|---|---|",
        "```python",
        "x = 1  # not a heading",
        "```",
        "    indented",
        "…" * 30,
        "." * 50,
        "`code. span.` and text。",
    ]
)
BODIES = st.lists(LINES | st.text(max_size=60), max_size=25).map("\n".join)


def cut(body: str, media_type: str = MARKDOWN) -> list[Chunk]:
    return list(chunks(body, media_type))


def said(body: str) -> list[str]:
    return [body[start:end] for start, end in sentences(body, 0, len(body))]


@given(BODIES, st.sampled_from([MARKDOWN, PLAIN]))
def test_spans_are_exact_ordered_and_small(body: str, media_type: str) -> None:
    before = -1
    for chunk in cut(body, media_type):
        text = body[chunk.start : chunk.end]
        assert 0 < len(text) <= MAX_CHARS
        assert text == text.strip()
        assert chunk.start > before
        before = chunk.start
        for start, end in chunk.sentences:
            assert chunk.start <= start < end <= chunk.end
            assert body[start:end].strip() == body[start:end]


@given(BODIES, st.sampled_from([MARKDOWN, PLAIN]))
def test_nothing_is_lost_but_space_rules_headings_and_marks(body: str, media_type: str) -> None:
    found = cut(body, media_type)
    kept = {at for chunk in found for at in range(chunk.start, chunk.end)}
    for line in outline(body, media_type):
        if line.kind in ("heading", "rule", "blank"):
            continue
        mark = ITEM.match(body, line.start, line.end)
        start = mark.end() if mark else line.start
        while body[start : start + 1] in (">", " ", "\t") and start < line.end:
            start += 1
        lost = {at for at in range(start, line.end) if at not in kept and not body[at].isspace()}
        assert not lost, body[line.start : line.end]


@given(BODIES)
def test_a_chunk_stays_within_its_section(body: str) -> None:
    found = cut(body)
    headings = [line for line in outline(body, MARKDOWN) if line.kind == "heading"]
    if any(chunk.sentences for chunk in found):
        for chunk in found:
            assert not any(chunk.start <= line.start < chunk.end for line in headings)


def test_the_path_of_headings_is_kept() -> None:
    body = "# Top\n\nintro\n\n## Part\n\ntext\n\n### Deep\n\nmore\n\n## Other\n\nend\n"
    assert [(chunk.heading, body[chunk.start : chunk.end]) for chunk in cut(body)] == [
        ("Top", "intro"),
        ("Top › Part", "text"),
        ("Top › Part › Deep", "more"),
        ("Top › Other", "end"),
    ]
    assert all(chunk.opens for chunk in cut(body))


def test_a_long_section_gives_chunks_of_400_to_800_that_overlap_by_a_sentence() -> None:
    body = "\n\n".join(
        "".join(f"第{p}段第{n}句说的是一件事情。" for n in range(12)) for p in range(15)
    )
    found = cut(body)
    assert len(found) > 3
    assert [chunk.opens for chunk in found] == [True] + [False] * (len(found) - 1)
    for one, after in pairwise(found):
        assert MIN_CHARS <= one.end - one.start <= MAX_CHARS
        assert one.sentences[-1] == after.sentences[0]


def test_a_section_does_not_end_in_a_crumb() -> None:
    body = "".join(f"这是第{n:02}个句子，不长也不短，刚好二十来个字。" for n in range(36))
    assert len(body) > MAX_CHARS
    assert all(chunk.end - chunk.start >= MIN_CHARS for chunk in cut(body))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("一句。两句！三句？「四句。」五句", ["一句。", "两句！", "三句？", "「四句。」", "五句"]),
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Python 3.11 and v0.8. Next.", ["Python 3.11 and v0.8.", "Next."]),
        ("Tools, e.g. grep, i.e. search. Dr. Who.", ["Tools, e.g. grep, i.e. search.", "Dr. Who."]),
        ("See example.com/a.b for more. End.", ["See example.com/a.b for more.", "End."]),
        ("Call `a.b. c` now. End.", ["Call `a.b. c` now.", "End."]),
        ("J. Smith wrote it. He did.", ["J. Smith wrote it.", "He did."]),
        ("Wait... what? Yes.", ["Wait...", "what?", "Yes."]),
        ("He said “no.” Then left.", ["He said “no.”", "Then left."]),
        ("soft\nwrapped line. next", ["soft\nwrapped line.", "next"]),
        ("短句；再短句。", ["短句；再短句。"]),
        ("甲" * 90 + "；乙。", ["甲" * 90 + "；", "乙。"]),
        ("> quoted. Again.\n> More.", ["quoted.", "Again.", "More."]),
        ("**Bold end.** Next.", ["**Bold end.**", "Next."]),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text: str, expected: list[str]) -> None:
    assert said(text) == expected


def test_code_and_tables_are_found_but_never_quoted() -> None:
    body = (
        "# T\n\nText.\n\n```sql\nSELECT 1;\n-- a. b. c\n```\n\n| a | b |\n|---|---|\n| 1. x | 2 |\n"
    )
    [chunk] = cut(body)
    assert "SELECT 1;" in body[chunk.start : chunk.end]
    assert [body[start:end] for start, end in chunk.sentences] == ["Text."]


def test_a_document_of_headings_alone_can_still_be_found() -> None:
    body = "# One\n## Two\n"
    [chunk] = cut(body)
    assert body[chunk.start : chunk.end] == "# One\n## Two"
    assert chunk.sentences == ()


@pytest.mark.parametrize(
    "text", ["." * 200_000 + "x", "`" * 400_000, "# " * 200_000, " " * 400_000]
)
def test_no_text_takes_for_ever(text: str) -> None:
    """A regular expression that goes back and forth would take hours here, not a moment."""
    assert len(cut(text)) >= 0
    assert len(cut("a" + text, PLAIN)) > 0
