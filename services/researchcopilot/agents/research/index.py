"""The lexical index: BM25 by tantivy over our own tokens, in a folder.

`Builder` writes one, `Reader` searches one; both are made and used in threads, never on the event
loop. tantivy is imported on first use, so that a worker without an index does not pay for it. A
chunk's text is stored with it: an answer needs nothing but the index. What a version finds is
settled by its files; equal scores are ordered by name and place.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from researchcopilot.agents.research.chunking import ARROW, Chunk, chunks
from researchcopilot.agents.research.terms import Piece
from researchcopilot.agents.research.tokens import FIRST_CJK, characters, tokens
from researchcopilot.core.documents import Document

if TYPE_CHECKING:
    import tantivy

# Of tokens, chunks and fields together: an index of another format is built anew.
FORMAT = 1

HEAP_BYTES = 32_000_000
SOFT_BOOST = 0.25
HINT_BOOST = 0.5
HEAD_BOOST = 1.0


@dataclass(frozen=True, slots=True)
class Passage:
    """A chunk as it was found. Spans count characters of the document's text; `opens` says that
    it starts its section."""

    document_id: str
    name: str
    title: str
    heading: str
    start: int
    end: int
    text: str
    sentences: tuple[tuple[int, int], ...]
    opens: bool
    score: float


class Builder:
    """Changes the index in a folder, or starts one. `finish` makes the changes and closes it."""

    def __init__(self, folder: Path) -> None:
        import tantivy

        self._folder = folder
        index = tantivy.Index(_schema(), path=str(folder))
        self._writer = index.writer(heap_size=HEAP_BYTES, num_threads=1)

    def remove(self, document_ids: Iterable[str]) -> None:
        for document_id in document_ids:
            self._writer.delete_documents_by_term("document_id", document_id)

    def add(self, document: Document) -> None:
        import tantivy

        for chunk in chunks(document.body, document.media_type):
            entry = tantivy.Document()
            for field, value in _fields(document, chunk).items():
                entry.add_text(field, value)
            entry.add_bytes("source", _source(document, chunk))
            self._writer.add_document(entry)

    def finish(self) -> int:
        """Commit; the number of chunks in the index."""
        self._writer.commit()
        self._writer.wait_merging_threads()
        del self._writer
        return Reader(self._folder).size


def _schema() -> "tantivy.Schema":
    import tantivy

    builder = tantivy.SchemaBuilder()
    builder.add_text_field("document_id", tokenizer_name="raw", index_option="basic")
    builder.add_text_field("body", tokenizer_name="whitespace", index_option="freq")
    builder.add_text_field("head", tokenizer_name="whitespace", index_option="freq")
    builder.add_text_field("characters", tokenizer_name="whitespace", index_option="basic")
    builder.add_bytes_field("source", stored=True)
    return builder.build()


def _fields(document: Document, chunk: Chunk) -> dict[str, str]:
    found = tokens(document.body[chunk.start : chunk.end])
    return {
        "document_id": document.document_id,
        "body": " ".join(found),
        "head": " ".join(tokens(f"{document.title}\n{_heading(document, chunk)}")),
        "characters": " ".join(characters(found)),
    }


def _heading(document: Document, chunk: Chunk) -> str:
    """The path of headings without the document's own title."""
    first, _, rest = chunk.heading.partition(ARROW)
    return rest if first == document.title else chunk.heading


def _source(document: Document, chunk: Chunk) -> bytes:
    source = {
        "document_id": document.document_id,
        "name": document.name,
        "title": document.title,
        "heading": _heading(document, chunk),
        "start": chunk.start,
        "end": chunk.end,
        "text": document.body[chunk.start : chunk.end],
        "sentences": chunk.sentences,
        "opens": chunk.opens,
    }
    return json.dumps(source, ensure_ascii=False).encode()


class Reader:
    """An open index. Safe to use from several threads at once."""

    def __init__(self, folder: Path) -> None:
        import tantivy

        self._index = tantivy.Index.open(str(folder))
        self._index.config_reader("manual")  # no thread that watches files which never change
        self._searcher = self._index.searcher()

    @property
    def size(self) -> int:
        """Chunks in the index."""
        return self._searcher.num_docs

    def frequency(self, token: str) -> int:
        """In how many chunks a token stands, in text or headings."""
        fields = ("characters",) if is_character(token) else ("body", "head")
        return max(self._searcher.doc_freq(field, token) for field in fields)

    def search(
        self, pieces: Sequence[Piece], limit: int, hints: Sequence[Piece] = ()
    ) -> list[Passage]:
        """The best chunks for any of the pieces, best first; those with hints a little sooner."""
        boosts = [(piece, SOFT_BOOST if piece.soft else 1.0) for piece in pieces]
        boosts += [(piece, HINT_BOOST) for piece in hints]
        clauses = [clause for piece, boost in boosts for clause in self._clauses(piece, boost)]
        if not clauses:
            return []
        import tantivy

        query = tantivy.Query.boolean_query(clauses)
        # Twice as many, so that equal scores at the limit are settled by us.
        hits = self._searcher.search(query, 2 * limit, count=False).hits
        found = [self._passage(score, address) for score, address in hits]
        found.sort(key=lambda passage: (-passage.score, passage.name, passage.start))
        return found[:limit]

    def _clauses(self, piece: Piece, boost: float) -> "list[tuple[tantivy.Occur, tantivy.Query]]":
        clauses = []
        for token in piece.tokens:
            if is_character(token):
                clauses.append(self._clause("characters", token, boost))
            else:
                clauses.append(self._clause("body", token, boost))
                clauses.append(self._clause("head", token, boost * HEAD_BOOST))
        return clauses

    def _clause(
        self, field: str, token: str, boost: float
    ) -> "tuple[tantivy.Occur, tantivy.Query]":
        import tantivy

        term = tantivy.Query.term_query(self._index.schema, field, token, "freq")
        return tantivy.Occur.Should, tantivy.Query.boost_query(term, boost)

    def _passage(self, score: float, address: "tantivy.DocAddress") -> Passage:
        stored: Any = self._searcher.doc(address).get_first("source")
        source: dict[str, Any] = json.loads(stored)
        spans = tuple((start, end) for start, end in source.pop("sentences"))
        return Passage(**source, sentences=spans, score=round(score, 6))


def is_character(token: str) -> bool:
    """Is it a CJK character alone? Those are searched in a field of their own."""
    return len(token) == 1 and token > FIRST_CJK


def deleted_share(folder: Path) -> float:
    """Which share of the chunks in the files is deleted: they still weigh on rarities."""
    segments = json.loads((folder / "meta.json").read_text())["segments"]
    total = sum(segment["max_doc"] for segment in segments)
    deleted = sum((segment["deletes"] or {}).get("num_deleted_docs", 0) for segment in segments)
    return deleted / total if total else 0.0
