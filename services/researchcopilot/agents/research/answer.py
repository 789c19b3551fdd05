"""The answer: a frame in the question's language around sentences quoted in their own.

Nothing is said about the subject that is not quoted, and every quote is cited with its document,
heading and exact span. A comparison is grouped by side. What the corpus does not support is named
as missing instead of answered; `SUPPORT` is where that line is drawn, and
tests/unit/test_research_answers.py measures it.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from researchcopilot.agents.research.plan import Language, Plan
from researchcopilot.agents.research.quotes import (
    Names,
    Quote,
    candidates,
    heading_words,
    names_all,
    of_aspect,
    of_several,
    of_side,
    pick,
)
from researchcopilot.agents.research.retrieve import Hop, words_of

SUPPORT = 0.59
QUOTES = 6
QUOTES_OF_A_SIDE = 4
QUOTES_TOGETHER = 5
# With fewer quotes a side is only mentioned, unless a section is about it.
ENOUGH_OF_A_SIDE = 2
BEGINNING = 24

_SPACE = re.compile(r"\s*\n[ \t]*(?:>[ \t]*)*|[ \t]+")


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    quotes: tuple[Quote, ...]
    found: bool


_TEXT: dict[Language, dict[str, str]] = {
    "zh": {
        "found": "关于“{question}”，语料库里这样写（引自 {documents} 篇文档）：",
        "compare": "对比 {sides}，语料库里这样写（引自 {documents} 篇文档）：",
        "last": " 与 ",
        "together": "放在一起看",
        "one_side": "语料库里没有关于 {missing} 的内容，所以无法完成这个对比；下面只有找到的部分。",
        "mentioned": "语料库里只顺带提到 {missing}，不足以完成这个对比；下面是找到的部分。",
        "not_found": "语料库里没有能回答“{question}”的内容。",
        "nearest": "最接近的文档是《{title}》，但其中没有提到{words}。",
        "no_words": "这个问题里没有可以检索的词。请写出要查的对象，例如“对比 pgvector 与 Qdrant”。",
        "empty": "语料库还是空的，或者索引还没有建好。请先添加文档：`researchcopilot corpus add`。",
        "word": "“{}”",
        "and": "、",
        "quote": "“{}”",
    },
    "en": {
        "found": "On “{question}” the corpus says ({documents}):",
        "compare": "Comparing {sides}, the corpus says ({documents}):",
        "last": " and ",
        "together": "Side by side",
        "one_side": "The corpus has nothing on {missing}, so the comparison cannot be made; "
        "below is only what was found.",
        "mentioned": "The corpus only mentions {missing} in passing, which is not enough for the "
        "comparison; below is what was found.",
        "not_found": "The corpus has nothing that answers “{question}”.",
        "nearest": "The nearest document is “{title}”, which does not mention {words}.",
        "no_words": "There is no word in this question to search by. Name what it is about, "
        "for example “compare pgvector and Qdrant”.",
        "empty": "The corpus is empty, or its index has not been built yet. "
        "Add documents with `researchcopilot corpus add`.",
        "word": "“{}”",
        "and": ", ",
        "quote": "“{}”",
    },
}


def compose(plan: Plan, hops: Sequence[Hop]) -> Answer:
    """The answer to a plan from what its searches brought, in the plan's order."""
    if not plan.searches:
        return Answer(_TEXT[plan.language]["no_words"], (), False)
    return _comparison(plan, hops) if plan.kind == "compare" else _plain(plan, hops)


def empty_corpus(language: Language) -> Answer:
    return Answer(_TEXT[language]["empty"], (), False)


def _plain(plan: Plan, hops: Sequence[Hop]) -> Answer:
    words = _TEXT[plan.language]
    first = hops[0]
    if first.support < SUPPORT or _lacks_a_name(first):
        return _not_found(plan, first)
    merged: dict[tuple[str, int], Quote] = {}
    for hop in hops:
        for quote in candidates(hop, plan.language):
            known = merged.get(quote.place)
            if known is None or known.worth < quote.worth:
                merged[quote.place] = quote
    quotes = sorted(merged.values(), key=lambda q: (-q.worth, q.passage.name, q.start))
    chosen = _in_reading_order(pick(quotes, QUOTES))
    if not chosen:
        return _not_found(plan, first)
    head = words["found"].format(question=plan.question, documents=_documents(plan, chosen))
    return Answer(_page(head, _by_document(chosen), chosen, words), tuple(chosen), True)


def _not_found(plan: Plan, hop: Hop) -> Answer:
    words = _TEXT[plan.language]
    text = words["not_found"].format(question=plan.question)
    if hop.nearest and hop.missing:
        missing = words["and"].join(words["word"].format(word) for word in hop.missing)
        text += " " + words["nearest"].format(title=hop.nearest, words=missing)
    return Answer(text, (), False)


def _lacks_a_name(hop: Hop) -> bool:
    """Is a name of the question nowhere in the best document? Then it is about something else,
    however much of the rest is there."""
    return any(item.piece.name and item.piece.text in hop.missing for item in hop.weighted)


def _comparison(plan: Plan, hops: Sequence[Hop]) -> Answer:
    words = _TEXT[plan.language]
    sides, whole = hops[:-1], hops[-1]
    names = [[item for item in hop.weighted if item.piece in hop.search.needs] for hop in sides]
    named = {piece for hop in sides for piece in hop.search.needs}
    aspect = [item for item in whole.weighted if item.piece not in named]
    several = of_aspect(of_several(candidates(whole, plan.language), names), aspect)
    together = _in_reading_order(pick(several, QUOTES_TOGETHER))
    chosen = list(together)
    groups = [(words["together"], together)]
    missing: list[Hop] = []
    for number, hop in enumerate(sides):
        quotes = of_aspect(of_side(candidates(hop, plan.language), names, number), aspect)
        picked = _in_reading_order(pick(quotes, QUOTES_OF_A_SIDE, chosen))
        if not _is_discussed(hop, names[number], together, picked):
            missing.append(hop)
        groups.append((hop.search.label, picked))
        chosen += picked
    if not chosen or len(missing) == len(sides):
        return _not_found(plan, whole)
    head = words["compare"].format(
        sides=words["last"].join((words["and"].join(plan.sides[:-1]), plan.sides[-1])),
        documents=_documents(plan, chosen),
    )
    if missing:
        head = words["mentioned" if any(hop.passages for hop in missing) else "one_side"]
        head = head.format(missing=words["and"].join(hop.search.label for hop in missing))
    return Answer(_page(head, groups, chosen, words), tuple(chosen), not missing)


def _is_discussed(hop: Hop, names: Names, together: Sequence[Quote], own: Sequence[Quote]) -> bool:
    """Is this side a subject of the corpus, or only mentioned? It is one if a section is named
    after it, if a sentence begins with it, or if enough sentences name it."""
    naming = sum(names_all(names, quote.words) for quote in together)
    return (
        naming + len(own) >= ENOUGH_OF_A_SIDE
        or any(names_all(names, heading_words(passage)) for passage in hop.passages)
        or any(names_all(names, words_of(quote.text[:BEGINNING])) for quote in own)
    )


def _in_reading_order(quotes: Iterable[Quote]) -> list[Quote]:
    """The document that gives most comes first; within one, as its author wrote."""
    quotes = list(quotes)
    worth: dict[str, float] = defaultdict(float)
    for quote in quotes:
        worth[quote.passage.document_id] += quote.worth
    return sorted(quotes, key=lambda q: (-worth[q.passage.document_id], q.passage.name, q.start))


def _by_document(quotes: Sequence[Quote]) -> list[tuple[str, list[Quote]]]:
    groups: dict[str, tuple[str, list[Quote]]] = {}
    for quote in quotes:
        passage = quote.passage
        groups.setdefault(passage.document_id, (passage.title, []))[1].append(quote)
    return list(groups.values())


def _documents(plan: Plan, quotes: Sequence[Quote]) -> str:
    count = len({quote.passage.document_id for quote in quotes})
    if plan.language == "zh":
        return str(count)
    return f"{count} document" + ("s" if count != 1 else "")


def _page(
    head: str,
    groups: Sequence[tuple[str, Sequence[Quote]]],
    chosen: Sequence[Quote],
    words: dict[str, str],
) -> str:
    numbers = {quote.place: number for number, quote in enumerate(chosen, start=1)}
    lines = [head]
    for label, quotes in groups:
        if not quotes:
            continue
        lines += ["", f"**{label}**"]
        for quote in quotes:
            shown = words["quote"].format(one_line(quote.text))
            lines.append(f"- {shown} [{numbers[quote.place]}]")
    return "\n".join(lines)


def one_line(text: str) -> str:
    """A quote as it is shown."""
    return _SPACE.sub(" ", text)


def citations(answer: Answer) -> list[dict[str, Any]]:
    """What stands behind [1], [2], …: text[start:end] of the document is the quote."""
    return [
        {
            "n": number,
            "kind": "document",
            "document_id": quote.passage.document_id,
            "title": quote.passage.title,
            "name": quote.passage.name,
            "heading": quote.passage.heading,
            "start": quote.start,
            "end": quote.end,
            "quote": quote.text,
        }
        for number, quote in enumerate(answer.quotes, start=1)
    ]
