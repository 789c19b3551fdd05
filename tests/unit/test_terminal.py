"""Columns hold also with Chinese, and text that is cut or wrapped never gets wider than asked."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from researchcopilot.dev.terminal import Terminal, cut, pad, width, wrap


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("abc", 3),
        ("召回率", 6),
        ("对比 pgvector 与 Qdrant", 23),
        ("e\u0301", 1),
        ("（）", 4),
        ("", 0),
    ],
)
def test_wide_characters_take_two_columns(text: str, columns: int) -> None:
    assert width(text) == columns
    assert width(pad(text, 30)) == 30


@given(st.text(alphabet="ab 召回率，。é\u0301", max_size=40), st.integers(4, 30))
def test_cut_text_fits_and_says_that_it_was_cut(text: str, columns: int) -> None:
    found = cut(text, columns)
    assert width(found) <= columns
    assert found == text or found.endswith("…")


@given(st.text(alphabet="ab 召回率", max_size=80), st.integers(12, 30))
def test_wrapped_text_fits_and_loses_nothing_but_spaces(text: str, columns: int) -> None:
    words = " ".join(word[:10] for word in text.split())
    lines = wrap(words, columns)
    assert all(width(line) <= columns for line in lines)
    assert "".join(lines).replace(" ", "") == words.replace(" ", "")


def test_no_line_begins_with_a_closing_mark() -> None:
    lines = wrap("召回率怎么评？" * 5, 14)
    assert lines and not any(line.startswith("？") for line in lines)


def test_a_file_gets_no_colours() -> None:
    out = Terminal(io.StringIO())
    assert out.tint("text", "red", "bold") == "text"
