"""Documents: what the corpus is made of, and how a file becomes one.

A document's text is what its offsets count: decoded, without a byte order mark, every line ended
by one newline. Its hash is that of this text as UTF-8, so the same text saved in two encodings is
one document. Whatever is refused is refused with the file's name, the limit and what to do.
"""

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import Literal

from researchcopilot.core.errors import BadInput, TooLarge
from researchcopilot.core.outline import MARKDOWN, PLAIN, title_of

MEDIA_TYPES = {".md": MARKDOWN, ".markdown": MARKDOWN, ".txt": PLAIN}
MAX_NAME = 500

Outcome = Literal["added", "replaced", "unchanged", "duplicate"]

_BAD_IN_NAME = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_CONTROL = re.compile("[\x01-\x08\x0e-\x1a\x1c-\x1f]")
# What people rename to .txt by mistake, by its first bytes.
_MAGIC = {
    b"%PDF": "a PDF",
    b"PK\x03\x04": "a ZIP archive or an Office file",
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"\x1f\x8b": "a gzip archive",
    b"\x7fELF": "a program",
    b"{\\rtf": "an RTF file",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}


@dataclass(frozen=True, slots=True)
class NewDocument:
    """A document as it is added. `sha256` and `bytes` are those of `body` as UTF-8."""

    name: str
    title: str
    media_type: str
    body: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class AddedDocument:
    """What became of a NewDocument. `duplicate_of` names the document that has the same text;
    `document_id` is that document's then."""

    name: str
    document_id: str
    outcome: Outcome
    duplicate_of: str | None = None


@dataclass(frozen=True, slots=True)
class DocumentInfo:
    """A document of the corpus without its text."""

    document_id: str
    name: str
    title: str
    media_type: str
    sha256: str
    bytes: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Document:
    """A document with its text. `retired_at` is set once a new text has replaced it."""

    document_id: str
    name: str
    title: str
    media_type: str
    sha256: str
    bytes: int
    created_at: datetime
    body: str
    retired_at: datetime | None


def read_document(name: str, data: bytes, *, max_bytes: int) -> NewDocument:
    """A file's bytes as a document. Raises BadInput or TooLarge with a sentence for its owner."""
    name = _checked_name(name)
    check_size(name, len(data), max_bytes=max_bytes)
    media_type = media_type_of(name)
    body = _decoded(name, data)
    if not body.strip():
        raise BadInput(f"{name} is empty: there is no text in it.", field="body", code="empty")
    encoded = body.encode()
    return NewDocument(
        name=name,
        title=title_of(body, media_type, PurePosixPath(name).stem),
        media_type=media_type,
        body=body,
        sha256=hashlib.sha256(encoded).hexdigest(),
        bytes=len(encoded),
    )


def check_size(name: str, size: int, *, max_bytes: int) -> None:
    """Raises TooLarge. Apart from `read_document`, so that a huge file need not be read at all."""
    if size > max_bytes:
        raise TooLarge(
            f"{name} has {_megabytes(size)}; a document may have {_megabytes(max_bytes)}. "
            "Split it by its chapters, or raise RC_API_MAX_DOCUMENT_BYTES.",
            field="body",
        )


def media_type_of(name: str) -> str:
    """By the extension. Raises BadInput for one that is not ours."""
    suffix = PurePosixPath(name).suffix.lower()
    if suffix not in MEDIA_TYPES:
        raise BadInput(
            f"{name} is not one of {', '.join(MEDIA_TYPES)}. "
            "Convert it to Markdown or plain text first.",
            field="name",
            code="unknown_type",
        )
    return MEDIA_TYPES[suffix]


def _checked_name(name: str) -> str:
    name = unicodedata.normalize("NFC", name)
    if not name.strip() or len(name) > MAX_NAME or _BAD_IN_NAME.search(name):
        shown = name[:60].encode("ascii", "backslashreplace").decode() or "''"
        raise BadInput(
            f"The document's name {shown} cannot be used: give 1 to {MAX_NAME} characters "
            "without control characters.",
            field="name",
        )
    return name


def _decoded(name: str, data: bytes) -> str:
    binary = next((what for magic, what in _MAGIC.items() if data.startswith(magic)), None)
    if binary:
        raise _not_text(name, f"is {binary}")
    if b"\x00" in data:
        raise _not_text(name, f"is binary: byte {data.index(0)} is NUL")
    try:
        body = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        body = _from_gb18030(name, data, error.start)
    body = body.replace("\r\n", "\n").replace("\r", "\n")
    strange = sum(1 for _ in _CONTROL.finditer(body))
    if strange * 50 > len(body):
        raise _not_text(name, f"is binary: {strange} of its characters are control characters")
    return body


def _from_gb18030(name: str, data: bytes, bad_byte: int) -> str:
    """GB18030 decodes much that is none, so the result has to look like Chinese: nearly all of
    what is not ASCII must be among the characters of GB 2312, the common ones."""
    reason = f"is not UTF-8 (byte {bad_byte}) nor GB18030"
    try:
        body = data.decode("gb18030")
    except UnicodeDecodeError:
        raise _not_text(name, reason) from None
    strange = [character for character in body if ord(character) > 127]
    common = len("".join(strange).encode("gb2312", "ignore")) // 2
    if common * 10 < len(strange) * 9:
        raise _not_text(name, reason)
    return body


def _not_text(name: str, what: str) -> BadInput:
    return BadInput(f"{name} {what}. Save it as UTF-8 text.", field="body", code="not_text")


def _megabytes(size: int) -> str:
    return f"{size / 1_048_576:.1f} MB" if size >= 104_858 else f"{size:,} bytes"
