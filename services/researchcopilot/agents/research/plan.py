"""A question taken apart: its language, its kind, and the searches that it needs.

Rules, no model. A comparison becomes one search for each side and one for all of them; a question
for a way or a cause gets a second search that leans towards what such answers say; everything else
is one search. The same question always gives the same plan.
"""

import re
from dataclasses import dataclass
from typing import Literal

from researchcopilot.agents.research.compare import Comparison, comparison, names_of
from researchcopilot.agents.research.terms import Piece, pieces
from researchcopilot.agents.research.words import STOP_EN, hints

Language = Literal["zh", "en"]
Kind = Literal["compare", "evaluate", "how", "why", "plain"]

_HAN = re.compile("[\u3400-\u9fff]")
_KANA_OR_HANGUL = re.compile("[\u3041-\u30ff\uac00-\ud7a3]")
_LATIN_WORD = re.compile("[A-Za-z]+")

_EVALUATE = re.compile(
    r"(?:怎么|如何|怎样)(?:评|测|衡量)|评估|评测|\b(?:evaluat|measur|assess|benchmark)",
    re.IGNORECASE,
)
_HOW = re.compile(r"怎么|如何|怎样|^\W*how (?:do|does|to|can|should|is|are)\b", re.IGNORECASE)
_WHY = re.compile(r"为什么|为何|为啥|^\W*why\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Search:
    """One hop. `label` names a side of a comparison, whose `needs` a passage must hold; `hints`
    may be there, `pieces` should."""

    label: str
    pieces: tuple[Piece, ...]
    needs: tuple[Piece, ...] = ()
    hints: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """`searches` are one for each of `sides` and one for all of them together in a comparison."""

    question: str
    language: Language
    kind: Kind
    searches: tuple[Search, ...]
    sides: tuple[str, ...] = ()


def plan(question: str) -> Plan:
    """What to search for. A question without a word to search by has no searches."""
    question = " ".join(question.split())
    language = language_of(question)
    if compared := comparison(question):
        return Plan(question, language, "compare", _of_sides(compared), compared.sides)
    kind = _kind(question)
    asked = pieces(question)
    searches = [Search("", asked)] if asked else []
    if asked and kind != "plain":
        searches.append(Search("", asked, hints=pieces(hints(kind, language))))
    return Plan(question, language, kind, tuple(searches))


def language_of(text: str) -> Language:
    """The language of the answer's frame: Chinese where the sentence is Chinese, else English."""
    han = len(_HAN.findall(text))
    if not han or _KANA_OR_HANGUL.search(text):
        return "en"
    english = sum(word.lower() in STOP_EN for word in _LATIN_WORD.findall(text))
    return "en" if english >= 2 and english * 2 > han else "zh"


def _kind(question: str) -> Kind:
    if _EVALUATE.search(question):
        return "evaluate"
    if _HOW.search(question):
        return "how"
    return "why" if _WHY.search(question) else "plain"


def _of_sides(compared: Comparison) -> tuple[Search, ...]:
    about = pieces(compared.aspect)
    sides = [
        Search(side, _once(*pieces(side), *about), needs=names_of(side)) for side in compared.sides
    ]
    together = _once(*(piece for search in sides for piece in search.pieces))
    return (*sides, Search("", together))


def _once(*found: Piece) -> tuple[Piece, ...]:
    return tuple(dict.fromkeys(found))
