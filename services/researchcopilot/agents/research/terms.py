"""A question's words: what is looked for, and how much of it a passage holds.

A piece is one word of an alphabet or one run of Chinese without its function words. Its share in a
question is its rarity in the corpus, so that `pgvector` counts for more than `data`, and a word
that the corpus has nowhere counts most of all: that is how a question is recognised that nothing
here can answer.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from researchcopilot.agents.research.tokens import bigrams, normalize, runs, stem, word_tokens
from researchcopilot.agents.research.words import KEEP_ZH, SOFT_EN, SOFT_ZH, STOP_EN, STOP_ZH

SOFT_WEIGHT = 0.25
NAME_WEIGHT = 1.5
FLOOR = 0.25
MAX_PIECES = 40

_SOFT_EN = frozenset(stem(word) for word in SOFT_EN)
_ZH = {
    **dict.fromkeys(STOP_ZH, "stop"),
    **dict.fromkeys(SOFT_ZH, "soft"),
    **dict.fromkeys(KEEP_ZH, "keep"),
}
_LONGEST = max(map(len, _ZH))
_SPELLED = re.compile(r"[A-Za-z0-9][\w.+#'-]*(?<![.'-])")
_DIGIT = re.compile(r"\d")

# token → in how many chunks of the index it stands
Frequency = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Piece:
    """`tokens`: for a word its whole first, then its parts; for CJK its bigrams in order.

    `name`: what the question is about, as far as its spelling shows: a word of an alphabet in a
    Chinese question, or one with a capital within the sentence, or with a digit.
    """

    text: str
    is_cjk: bool
    soft: bool
    tokens: tuple[str, ...]
    name: bool = False


@dataclass(frozen=True, slots=True)
class Weighted:
    """A piece with its weight, and for each of its tokens the rarity."""

    piece: Piece
    weight: float
    rarity: tuple[float, ...]


def pieces(text: str) -> tuple[Piece, ...]:
    """What a text asks about, in order and once each, without its function words."""
    return tuple(dict.fromkeys(_pieces(text)))[:MAX_PIECES]


def _pieces(text: str) -> Iterator[Piece]:
    found = list(runs(text))
    mixed = any(is_cjk for _, is_cjk in found)
    shown = _spelled_like_names(text)
    for run, is_cjk in found:
        if is_cjk:
            for part, soft in segments(run):
                yield _cjk(part, soft)
        elif run not in STOP_EN and (tokens := word_tokens(run)):
            soft = tokens[0] in _SOFT_EN
            yield Piece(run, False, soft, tuple(tokens), not soft and (mixed or run in shown))


def _spelled_like_names(text: str) -> frozenset[str]:
    """Words with a digit, or with a capital that is not the first letter of the text."""
    return frozenset(
        normalize(found.group())
        for found in _SPELLED.finditer(text)
        if _DIGIT.search(found.group())
        or found.group()[1:] != found.group()[1:].lower()
        or (found.start() > 0 and found.group()[0].isupper())
    )


def _cjk(run: str, soft: bool) -> Piece:
    return Piece(run, True, soft, tuple(bigrams(run)))


def segments(run: str) -> Iterator[tuple[str, bool]]:
    """A CJK run without its function words: (part, is it soft?). The longest word wins."""
    part = ""
    at = 0
    while at < len(run):
        word = _longest_word(run, at)
        kind = _ZH.get(word, "keep")
        if kind == "keep":
            part += word
        else:
            if part:
                yield part, False
            part = ""
            if kind == "soft":
                yield word, True
        at += len(word)
    if part:
        yield part, False


def _longest_word(run: str, at: int) -> str:
    for size in range(min(_LONGEST, len(run) - at), 1, -1):
        if run[at : at + size] in _ZH:
            return run[at : at + size]
    return run[at]


def rarity(frequency: int, size: int) -> float:
    """Between FLOOR (in every chunk) and 1 (nowhere): BM25's idf over its greatest value."""
    frequency = min(frequency, size)
    idf = math.log(1 + (size - frequency + 0.5) / (frequency + 0.5))
    return FLOOR + (1 - FLOOR) * idf / math.log(1 + (size + 0.5) / 0.5)


def weigh(found: Sequence[Piece], frequency: Frequency, size: int) -> list[Weighted]:
    """Each piece with its share in the question."""
    return [_weigh(piece, frequency, size) for piece in found]


def _weigh(piece: Piece, frequency: Frequency, size: int) -> Weighted:
    rare = tuple(rarity(frequency(token), size) for token in piece.tokens)
    if piece.is_cjk:
        weight = sum(_character_weights(rare)) / 2 if len(piece.text) > 1 else rare[0] / 2
    else:
        weight = min(rare[0], max(rare[1:], default=1.0))
    weight *= SOFT_WEIGHT if piece.soft else NAME_WEIGHT if piece.name else 1.0
    return Weighted(piece, weight, rare)


def _character_weights(rare: Sequence[float]) -> list[float]:
    """Of a run of CJK characters from its bigrams: each counts as the commoner of its two, since
    the rarer one mostly straddles two words."""
    if len(rare) == 1:
        return [rare[0], rare[0]]
    return [rare[0], *map(min, rare, rare[1:]), rare[-1]]


def coverage(weighted: Sequence[Weighted], has: frozenset[str] | set[str]) -> float:
    """The weighted share of the question that a text with the tokens `has` holds: 0 to 1."""
    total = sum(item.weight for item in weighted)
    return sum(item.weight * held(item, has) for item in weighted) / total if total else 0.0


def held(item: Weighted, has: frozenset[str] | set[str]) -> float:
    """How much of one piece is there: 0 to 1. Of a word all or nothing, of CJK by characters."""
    piece = item.piece
    if not piece.is_cjk:
        whole, *parts = piece.tokens
        return float(whole in has or (bool(parts) and all(part in has for part in parts)))
    there = [token in has for token in piece.tokens]
    weights = _character_weights(item.rarity)
    by_character = [there[0], *map(bool.__or__, there, there[1:]), there[-1]]
    total = sum(weights)
    return sum(w for w, held in zip(weights, by_character, strict=True) if held) / total
