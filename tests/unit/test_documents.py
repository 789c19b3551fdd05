"""A file becomes a document, or is refused with its name, the limit and what to do."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from researchcopilot.core.documents import NewDocument, read_document
from researchcopilot.core.errors import BadInput, TooLarge

LIMIT = 16 * 1024 * 1024
CHINESE = "# 召回率\n\n召回率是前 k 个结果里找到的相关段落数，除以全部相关段落数。\n"


def read(data: bytes, name: str = "notes.md") -> NewDocument:
    return read_document(name, data, max_bytes=LIMIT)


def refusal(data: bytes, name: str = "notes.md") -> BadInput:
    with pytest.raises(BadInput) as caught:
        read(data, name)
    return caught.value


def test_a_document_says_what_it_is() -> None:
    document = read(CHINESE.encode(), "guide/recall.md")
    assert (document.name, document.title) == ("guide/recall.md", "召回率")
    assert (document.media_type, document.body) == ("text/markdown", CHINESE)
    assert document.bytes == len(CHINESE.encode())
    assert document.sha256 == hashlib.sha256(CHINESE.encode()).hexdigest()
    assert read(b"hello", "notes.TXT").media_type == "text/plain"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gb18030"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_one_text_in_any_encoding_is_one_document(encoding: str, newline: str) -> None:
    data = CHINESE.replace("\n", newline).encode(encoding)
    assert read(data) == read(CHINESE.encode())


@pytest.mark.parametrize(
    ("body", "title"),
    [
        ("# One **two** `three` #\n\ntext", "One two three"),
        ("intro\n\n## Second level\n\n# First", "Second level"),
        ("Underlined\n==========\n\ntext", "Underlined"),
        ("```\n# a comment\n```\n\n# The heading", "The heading"),
        ("---\ntitle: x\ntags: [a]\n---\n# After the front matter\n", "After the front matter"),
        ("\n\nno heading here\nsecond line", "no heading here"),
        ("- only\n- a list", "only"),
        ("# \n\n---\n", "notes"),
        ("字" * 300, "字" * 200),
    ],
)
def test_the_title_is_the_first_heading_else_the_first_line_else_the_name(
    body: str, title: str
) -> None:
    assert read(body.encode()).title == title


def test_in_plain_text_a_hash_is_no_heading() -> None:
    assert read(b"first line\n# second", "a.txt").title == "first line"


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", b" \n\t\n", "\u3000\n".encode()])
def test_an_empty_file_is_refused(data: bytes) -> None:
    error = refusal(data)
    assert error.code == "empty"
    assert "notes.md is empty" in error.message


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"%PDF-1.7 ...", "is a PDF"),
        (b"PK\x03\x04 docx", "a ZIP archive or an Office file"),
        (b"\x7fELF\x02", "a program"),
        ("text".encode("utf-16"), "UTF-16"),
        (b"text\x00text", "byte 4 is NUL"),
        (b"\x01\x02\x03\x04 abc", "control characters"),
        ("na\u00efve caf\u00e9, se\u00f1or".encode("latin-1"), "is not UTF-8 (byte 2) nor GB18030"),
        ("データベース".encode("shift-jis"), "nor GB18030"),
        (bytes(range(128, 256)) * 20, "nor GB18030"),
    ],
)
def test_what_is_no_text_is_refused_and_named(data: bytes, says: str) -> None:
    error = refusal(data)
    assert error.code == "not_text"
    assert error.message.startswith("notes.md ")
    assert says in error.message
    assert "Save it as UTF-8" in error.message


def test_fifty_megabytes_are_refused_with_the_limit() -> None:
    error = refusal(b"x" * (50 * 1024 * 1024))
    assert isinstance(error, TooLarge)
    assert "notes.md has 50.0 MB" in error.message
    assert "a document may have 16.0 MB" in error.message
    assert "RC_API_MAX_DOCUMENT_BYTES" in error.message


def test_an_unknown_kind_is_refused_with_those_we_take() -> None:
    error = refusal(b"<p>", "page.html")
    assert error.code == "unknown_type"
    assert "page.html is not one of .md, .markdown, .txt" in error.message


@pytest.mark.parametrize("name", ["", " ", "a\nb.md", "x" * 600 + ".md", "bad\udcff.md", "\x00.md"])
def test_a_name_that_no_system_can_show_is_refused(name: str) -> None:
    error = refusal(b"text", name)
    assert error.field == "name"
    error.message.encode()  # can be printed


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        document = read(data)
    except BadInput as error:
        assert error.message.startswith("notes.md ")
    else:
        assert document.body.strip()
        assert "\x00" not in document.body
        assert "\r" not in document.body
