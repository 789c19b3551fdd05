"""Memory: what earlier runs of the workspace have concluded, found again and cited as just that.

A conclusion is made of quotes from documents alone, never of memories, so that nothing is handed on
from run to run without a document behind it. Whether a memory fits is measured as for passages: by
the share of the question that it holds, in the corpus's own rarities. It stands under a heading of
its own, with the day and the question of its run; it never takes a document's place.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from researchcopilot.agents.contract import Context, Remembered
from researchcopilot.agents.research.answer import SUPPORT, Answer, one_line
from researchcopilot.agents.research.plan import Language, Plan
from researchcopilot.agents.research.quotes import Quote, names_all
from researchcopilot.agents.research.retrieve import Hop, words_of
from researchcopilot.agents.research.terms import Weighted, coverage, held, weigh
from researchcopilot.storage import memories as stored
from researchcopilot.storage.memories import Recalled

SENTENCES = 3  # of a conclusion; a comparison of more sides has one for each
CITED = 2
CANDIDATES = 50

_TEXT: dict[Language, dict[str, str]] = {
    "zh": {
        "heading": "早先的研究",
        "says": "{day} 的一次研究（问题：“{question}”）得出：{text} [{n}]",
        "same": "{day} 的一次研究（问题：“{question}”）引用了同样的内容。[{n}]",
    },
    "en": {
        "heading": "From an earlier run",
        "says": "A run of {day}, on “{question}”, concluded: {text} [{n}]",
        "same": "A run of {day}, on “{question}”, quoted the same. [{n}]",
    },
}


# What is kept


def conclusion(hops: Sequence[Hop], answer: Answer) -> str:
    """The quotes that answer best, a sentence a line, in the answer's order; of a comparison at
    least one for each side. Empty where the corpus did not answer."""
    if not answer.found:
        return ""
    ranked = sorted(answer.quotes, key=lambda quote: -quote.worth)
    chosen = ranked[:1]
    for hop in hops:
        names = [item for item in hop.weighted if item.piece in hop.search.needs]
        if names and not any(names_all(names, quote.words) for quote in chosen):
            chosen += [quote for quote in ranked if _speaks_of(quote, names, chosen)][:1]
    chosen += [quote for quote in ranked if quote not in chosen][: max(0, SENTENCES - len(chosen))]
    return "\n".join(one_line(quote.text) for quote in answer.quotes if quote in chosen)


def _speaks_of(quote: Quote, names: Sequence[Weighted], chosen: Sequence[Quote]) -> bool:
    return quote not in chosen and names_all(names, quote.words | quote.setting)


def remember(input: Any, result: Any) -> Remembered | None:  # noqa: A002
    """What research keeps of a run: its conclusion, found by its own words and the question's."""
    question = input["question"] if isinstance(input, dict) else input
    if not result["conclusion"]:
        return None
    tokens = sorted(words_of(f"{question}\n{result['conclusion']}"))
    return Remembered(" ".join(question.split()), result["conclusion"], tuple(tokens))


# What is found again


async def recall(ctx: Context, planned: Plan, hops: Sequence[Hop]) -> list[Recalled]:
    """The memories that fit, best first. Kept as a step, so that a retried run cites the same ones;
    those that were removed or have expired meanwhile are left out all the same."""
    weighted = hops[-1].weighted if hops else _without_corpus(planned)
    if not weighted:
        return []

    async def look() -> list[dict[str, str]]:
        hard = [item.piece for item in weighted if not item.piece.soft]
        tokens = {token for piece in hard for token in piece.tokens}
        workspace_id = ctx.run.workspace_id
        found = await stored.recall(ctx.db, workspace_id, sorted(tokens), CANDIDATES)
        return [asdict(memory) for memory in fitting(weighted, found)]

    kept = [Recalled(**memory) for memory in await ctx.step("memories", look)]
    if not kept:
        return []
    ids = [memory.memory_id for memory in kept]
    living = await stored.living(ctx.db, ctx.run.workspace_id, ids)
    return [memory for memory in kept if memory.memory_id in living]


def _without_corpus(planned: Plan) -> tuple[Weighted, ...]:
    """Every word is as rare as any other."""
    pieces = planned.searches[-1].pieces if planned.searches else ()
    return tuple(weigh(pieces, lambda token: 0, 1))


def fitting(weighted: Sequence[Weighted], found: Sequence[Recalled]) -> list[Recalled]:
    """Those that hold enough of the question and all of its names; of equal texts the newest (it
    comes first). Those whose own question was most like this one come first."""
    scored: dict[str, tuple[float, float, Recalled]] = {}
    for memory in found:
        asked = words_of(memory.question)
        has = asked | words_of(memory.text)
        share = round(coverage(weighted, has), 6)
        named = all(held(item, has) >= 0.99 for item in weighted if item.piece.name)
        if named and share >= SUPPORT and memory.text not in scored:
            scored[memory.text] = (round(coverage(weighted, asked), 6), share, memory)
    best = sorted(scored.values(), key=lambda found: (-found[0], -found[1]))
    return [memory for _, _, memory in best[:CITED]]


def with_memories(
    answer: Answer, found: Sequence[Recalled], language: Language
) -> tuple[str, list[dict[str, Any]]]:
    """The answer's text with what earlier runs concluded, and the citations of that."""
    if not found:
        return answer.text, []
    words = _TEXT[language]
    quoted = {one_line(quote.text) for quote in answer.quotes}
    lines = [answer.text, "", f"**{words['heading']}**"]
    for number, memory in enumerate(found, start=len(answer.quotes) + 1):
        new = [line for line in memory.text.splitlines() if line not in quoted]
        quoted.update(new)
        form = words["says" if new else "same"]
        text = " ".join(f"“{line}”" for line in new)
        said = form.format(day=memory.day, question=memory.question, text=text, n=number)
        lines.append(f"- {said}")
    return "\n".join(lines), [
        {
            "n": number,
            "kind": "memory",
            "memory_id": memory.memory_id,
            "run_id": memory.run_id,
            "question": memory.question,
            "day": memory.day,
            "quote": memory.text,
        }
        for number, memory in enumerate(found, start=len(answer.quotes) + 1)
    ]
