"""One search of a plan against an open index: the passages, and how well they support it.

BM25 proposes, the share of the question that a passage holds disposes: of two passages with equal
scores the one that holds more of the question's words comes first. The result is JSON, since it is
kept as a step of the run; a retried run composes its answer from it without searching again.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from researchcopilot.agents.research.index import Passage, Reader
from researchcopilot.agents.research.plan import Search
from researchcopilot.agents.research.terms import Piece, Weighted, coverage, held, weigh
from researchcopilot.agents.research.tokens import characters, tokens

CANDIDATES = 24
KEPT = 8


@dataclass(frozen=True, slots=True)
class Hop:
    """What one search brought. `support` is the share of the question, by weight, that one passage
    with its headings holds at best, `missing` are the words that it does not hold, `nearest` the
    title of its document. One passage, not one document: words that stand pages apart answer
    nothing together."""

    search: Search
    weighted: tuple[Weighted, ...]
    passages: tuple[Passage, ...]
    support: float
    missing: tuple[str, ...]
    nearest: str


def retrieve(reader: Reader, search: Search) -> Hop:
    found = reader.search(search.pieces, CANDIDATES, search.hints)
    weighted = tuple(weigh(search.pieces, reader.frequency, reader.size))
    held_by = {id(passage): vocabulary(passage) for passage in found}
    needs = weigh(search.needs, reader.frequency, reader.size)
    ranked = [
        (passage.score * (0.5 + coverage(weighted, held_by[id(passage)])), passage)
        for passage in found
        if not needs or coverage(needs, held_by[id(passage)]) > 0.99
    ]
    ranked.sort(key=lambda pair: (-pair[0], pair[1].name, pair[1].start))
    passages = tuple(replace(passage, score=round(score, 6)) for score, passage in ranked)
    support, missing, nearest = _support(weighted, passages)
    return Hop(search, weighted, passages[:KEPT], support, missing, nearest)


def vocabulary(passage: Passage) -> frozenset[str]:
    """The tokens of a passage with those of its headings."""
    return words_of(f"{passage.title}\n{passage.heading}\n{passage.text}")


@lru_cache(maxsize=512)  # the hops of one question meet the same passages
def words_of(text: str) -> frozenset[str]:
    found = tokens(text)
    return frozenset((*found, *characters(found)))


def _support(
    weighted: Sequence[Weighted], passages: Sequence[Passage]
) -> tuple[float, tuple[str, ...], str]:
    """(share held, words not held, title) of the passage that holds most of the question."""
    best = (0.0, tuple(item.piece.text for item in weighted if not item.piece.soft), "")
    for passage in passages:
        has = vocabulary(passage)
        share = round(coverage(weighted, has), 6)
        if share > best[0]:
            lacks = (item.piece for item in weighted if held(item, has) < 0.5)
            missing = tuple(piece.text for piece in lacks if not piece.soft)
            best = (share, missing, passage.title)
    return best


def to_json(hop: Hop) -> dict[str, Any]:
    return asdict(hop)


def from_json(value: dict[str, Any]) -> Hop:
    return Hop(
        search=Search(
            value["search"]["label"],
            *(_pieces(value["search"][key]) for key in ("pieces", "needs", "hints")),
        ),
        weighted=tuple(
            Weighted(_piece(item["piece"]), item["weight"], tuple(item["rarity"]))
            for item in value["weighted"]
        ),
        passages=tuple(_passage(item) for item in value["passages"]),
        support=value["support"],
        missing=tuple(value["missing"]),
        nearest=value["nearest"],
    )


def _pieces(values: Sequence[dict[str, Any]]) -> tuple[Piece, ...]:
    return tuple(map(_piece, values))


def _piece(value: dict[str, Any]) -> Piece:
    return Piece(**{**value, "tokens": tuple(value["tokens"])})


def _passage(value: dict[str, Any]) -> Passage:
    spans = tuple((start, end) for start, end in value["sentences"])
    return Passage(**{**value, "sentences": spans})
