"""Which sentences of the passages are worth quoting.

A sentence is judged by how much of the question it holds, alone and together with its headings, by
the rank of its passage, and by how well it reads alone: one that starts with "It" or 因此, asks, or
only announces a list is worth less. Then maximal marginal relevance picks: each pick makes what
resembles it less welcome, so that two documents that say the same are quoted once.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from researchcopilot.agents.research.index import Passage
from researchcopilot.agents.research.plan import Language, language_of
from researchcopilot.agents.research.retrieve import Hop, words_of
from researchcopilot.agents.research.terms import Weighted, coverage, held
from researchcopilot.agents.research.tokens import stem
from researchcopilot.agents.research.words import STOP_EN

SHORTEST = 10
LONGEST = 320
LEAD = 1.2  # the first sentence of a section mostly says what the section says
CUT = 0.4  # a sentence worth less than this share of the best is left out,
CUT_REPEATED = 0.2  # and one that adds less than this
IN_PASSING = 0.6

_LEANS = re.compile(
    r"(?:it|this|that|these|those|they|he|she|but|so|however|therefore|thus|then|also|otherwise|"
    r"both|such|here|there|instead|moreover|until then)\b|"
    r"(?:它|这|那|其|但|因此|所以|于是|此外|不过|然而|而且|否则|同时|另外|为此|也|再|随后|因为)",
    re.IGNORECASE,
)
_ANNOUNCES = re.compile(r"[:：]$")
_ASKS = re.compile(r"[?？][\"”’」』)）]*$")


_GRAMMAR = frozenset(stem(word) for word in STOP_EN)

# What a side of a comparison is called, or its aspect; weighted.
Names = Sequence[Weighted]


@dataclass(frozen=True, slots=True)
class _Setting:
    """What a passage lends to its sentences: the words of title and headings, the share of the
    question in both and in the heading alone, and the passage's rank (1 for the best)."""

    words: frozenset[str]
    share: float
    by_heading: float
    rank: float


@dataclass(frozen=True, slots=True)
class Quote:
    """A sentence of the corpus, its span counted in the document. `setting` are the words of its
    title and headings, `own` those that neither the question nor grammar has put there."""

    passage: Passage
    start: int
    end: int
    text: str
    words: frozenset[str]
    setting: frozenset[str]
    own: frozenset[str]
    worth: float

    @property
    def place(self) -> tuple[str, int]:
        return self.passage.document_id, self.start


def candidates(hop: Hop, language: Language) -> list[Quote]:
    """Every sentence of a hop's passages with its worth, best first."""
    top = max((passage.score for passage in hop.passages), default=0.0) or 1.0
    found: dict[tuple[str, int], Quote] = {}
    common = _GRAMMAR.union(*(item.piece.tokens for item in hop.weighted))
    for passage in hop.passages:
        setting = _setting(hop, passage, passage.score / top)
        for number, (start, end) in enumerate(passage.sentences):
            text = passage.text[start - passage.start : end - passage.start]
            words = words_of(text)
            worth = _relevance(hop, words, setting) * _readability(text, language)
            if number == 0 and passage.opens and _leads(hop, passage, words, setting):
                worth *= LEAD
            own = words - common
            quote = Quote(passage, start, end, text, words, setting.words, own, round(worth, 6))
            if len(text) >= SHORTEST and quote.place not in found:
                found[quote.place] = quote
    return sorted(found.values(), key=_order)


def _order(quote: Quote) -> tuple[float, str, int]:
    return -quote.worth, quote.passage.name, quote.start


def _leads(hop: Hop, passage: Passage, words: frozenset[str], setting: _Setting) -> bool:
    named = setting.by_heading > 0 or coverage(hop.weighted, words) > 0
    return named or not passage.heading


def _setting(hop: Hop, passage: Passage, rank: float) -> _Setting:
    heading = words_of(passage.heading)
    words = heading_words(passage)
    share, by_heading = (coverage(hop.weighted, has) for has in (words, heading))
    return _Setting(words, share, by_heading, rank)


def heading_words(passage: Passage) -> frozenset[str]:
    return words_of(f"{passage.title}\n{passage.heading}")


def _relevance(hop: Hop, alone: frozenset[str], setting: _Setting) -> float:
    """The share of the question in the sentence, in its heading, and in both with the title. What
    is only mentioned in passing, in a document about something else, is worth less."""
    by_words = coverage(hop.weighted, alone)
    within = coverage(hop.weighted, alone | setting.words)
    worth = 0.45 * by_words + 0.2 * setting.by_heading + 0.1 * within + 0.25 * setting.rank
    has = alone | setting.words
    hinted = sum(any(token in has for token in piece.tokens) for piece in hop.search.hints)
    about = (0.3 + 0.7 * within**2) * (0.6 + 0.4 * setting.share)
    return (worth + min(0.2, 0.1 * hinted)) * about


def _readability(text: str, language: Language) -> float:
    factor = 1.1 if language_of(text) == language else 1.0
    if _LEANS.match(text):
        factor *= 0.75
    if _ANNOUNCES.search(text):
        factor *= 0.4
    if _ASKS.search(text):
        factor *= 0.5
    if len(text) > LONGEST:
        factor *= 0.6
    return factor


def pick(quotes: Sequence[Quote], limit: int, taken: Sequence[Quote] = ()) -> list[Quote]:
    """At most `limit` quotes, best first, unlike each other and unlike those `taken`."""
    chosen: list[Quote] = []
    best = max((quote.worth for quote in quotes), default=0.0)
    waiting = [quote for quote in quotes if quote.worth >= CUT * best]
    while waiting and len(chosen) < limit:
        others = [*taken, *chosen]
        found = max(waiting, key=lambda quote: (_marginal(quote, others), *_tie(quote)))
        if _marginal(found, others) < CUT_REPEATED * best:
            break
        chosen.append(found)
        waiting.remove(found)
    return chosen


def _tie(quote: Quote) -> tuple[str, int]:
    return quote.passage.name, -quote.start


def _marginal(quote: Quote, others: Sequence[Quote]) -> float:
    """What a quote still adds: nothing if it is there already, less if it repeats."""
    if any(_overlaps(quote, other) for other in others):
        return 0.0
    likeness = max((_likeness(quote, other) for other in others), default=0.0)
    siblings = sum(
        quote.passage.document_id == other.passage.document_id
        and quote.passage.heading == other.passage.heading
        for other in others
    )
    return quote.worth * (1 - likeness**2) * 0.9**siblings


def _overlaps(one: Quote, other: Quote) -> bool:
    same = one.passage.document_id == other.passage.document_id
    return same and one.start < other.end and other.start < one.end


def _likeness(one: Quote, other: Quote) -> float:
    smaller = min(len(one.own), len(other.own))
    return len(one.own & other.own) / smaller if smaller else 0.0


def of_aspect(quotes: Sequence[Quote], aspect: Names) -> list[Quote]:
    """Of a comparison in some respect, quotes that speak of it; all if none does."""
    speaking = [q for q in quotes if coverage(aspect, q.words | q.setting) > 0]
    return speaking or list(quotes)


def of_several(quotes: Sequence[Quote], names: Sequence[Names]) -> list[Quote]:
    """Quotes that name two sides or more."""
    return [q for q in quotes if sum(names_all(side, q.words) for side in names) > 1]


def of_side(quotes: Sequence[Quote], names: Sequence[Names], side: int) -> list[Quote]:
    """Quotes that are about one side for sure: they name it, or stand under a heading that names
    it and no other, and they name no other side. Where a section is about the side, what other
    sections say of it in passing is worth less."""
    own, others = names[side], [name for number, name in enumerate(names) if number != side]
    alone = [q for q in quotes if not any(names_all(other, q.words) for other in others)]
    titled = [quote for quote in alone if names_all(own, quote.setting)]
    passing = [quote for quote in alone if quote not in titled and names_all(own, quote.words)]
    found = [
        quote
        for quote in titled
        if names_all(own, quote.words)
        or not any(names_all(other, quote.setting) for other in others)
    ]
    if found:
        passing = [replace(quote, worth=quote.worth * IN_PASSING) for quote in passing]
    return sorted([*found, *passing], key=_order)


def names_all(side: Names, words: frozenset[str]) -> bool:
    """Do these words hold the whole name of a side?"""
    return all(held(item, words) >= 0.99 for item in side)
