"""research: a question in, an answer from the corpus out, every sentence of it cited.

    plan      the question taken apart: language, kind, searches          pure
    retrieve  each search against the index version this run has pinned   a step of the run
    answer    sentences chosen, quoted and cited, or "not in the corpus"  pure
    memory    what earlier runs concluded, cited as that                  a step of the run

A retried run reads the version it pinned and keeps the searches that were done, so that its answer
does not depend on how often its worker died. The same question gives the same answer as long as
index version and memories are the same. Corpus text is data: nothing in it is followed.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

from researchcopilot.agents.contract import Context, agent
from researchcopilot.agents.research.answer import Answer, citations, compose, empty_corpus
from researchcopilot.agents.research.cache import cache_for
from researchcopilot.agents.research.index import FORMAT
from researchcopilot.agents.research.memory import conclusion, recall, remember, with_memories
from researchcopilot.agents.research.plan import Plan, Search, plan
from researchcopilot.agents.research.retrieve import Hop, from_json, retrieve, to_json
from researchcopilot.core.errors import BadAgentInput
from researchcopilot.storage import indexes
from researchcopilot.storage.memories import Recalled

__all__ = ["question_of", "research"]

MAX_QUESTION = 2000
_QUESTION = {"type": "string", "minLength": 1, "maxLength": MAX_QUESTION}
INPUT = {
    "oneOf": [
        _QUESTION,
        {
            "type": "object",
            "properties": {"question": _QUESTION},
            "required": ["question"],
            "additionalProperties": False,
        },
    ]
}


@agent(
    description="Answers a question from the corpus, every sentence quoted and cited.",
    input_schema=INPUT,
    digest=True,
    remember=remember,
)
async def research(ctx: Context, input: Any) -> dict[str, Any]:  # noqa: A002
    """Returns {"answer", "citations", "conclusion", "index_version", "found", "language"}."""
    planned = plan(question_of(input))
    version = await indexes.pin(ctx.db, ctx.run)
    await ctx.emit("plan", _plan_event(planned, version))
    if version is None:
        hops, answer = [], empty_corpus(planned.language)
    else:
        hops = await _hops(ctx, version, planned)
        answer = await asyncio.to_thread(compose, planned, hops)
    result = _result(answer, await recall(ctx, planned, hops), planned, hops, version)
    cited = len(result["citations"])
    await ctx.emit("answer", {"found": result["found"], "citations": cited})
    return result


def question_of(value: Any) -> str:
    """The question in a run's input. Raises BadAgentInput that says what is right."""
    if isinstance(value, dict) and set(value) == {"question"}:
        value = value["question"]
    if not isinstance(value, str):
        raise BadAgentInput(
            'research takes a question: a string, or an object {"question": "…"} and nothing else.'
        )
    if not value.strip():
        raise BadAgentInput("The question is empty. Send the question as text.")
    if len(value) > MAX_QUESTION:
        raise BadAgentInput(
            f"The question has {len(value):,} characters; research takes {MAX_QUESTION:,}. "
            "Ask one thing at a time."
        )
    return value


async def _hops(ctx: Context, version: int, planned: Plan) -> list[Hop]:
    hops = []
    for number, search in enumerate(planned.searches, start=1):
        hop = await _hop(ctx, version, number, search)
        await ctx.emit("search", _hop_event(number, hop))
        hops.append(hop)
    return hops


async def _hop(ctx: Context, version: int, number: int, search: Search) -> Hop:
    async def look() -> dict[str, Any]:
        cache = cache_for(ctx.cache_dir)
        reader = await cache.reader(ctx.db, ctx.run.workspace_id, version)
        return await asyncio.to_thread(lambda: to_json(retrieve(reader, search)))

    # The name says what is looked for: another version of this code that plans otherwise must not
    # take this step for its own.
    digest = hashlib.sha256(repr(search).encode()).hexdigest()[:12]
    return from_json(await ctx.step(f"search {number} {FORMAT}-{digest}", look))


def _plan_event(planned: Plan, version: int | None) -> dict[str, Any]:
    searches = [" ".join(piece.text for piece in search.pieces) for search in planned.searches]
    return {"kind": planned.kind, "searches": searches, "index_version": version}


def _hop_event(number: int, hop: Hop) -> dict[str, Any]:
    found = [
        {"title": passage.title, "heading": passage.heading, "score": passage.score}
        for passage in hop.passages[:3]
    ]
    return {"search": number, "passages": len(hop.passages), "best": found}


def _result(
    answer: Answer,
    memories: Sequence[Recalled],
    planned: Plan,
    hops: Sequence[Hop],
    version: int | None,
) -> dict[str, Any]:
    text, remembered = with_memories(answer, memories, planned.language)
    return {
        "answer": text,
        "citations": [*citations(answer), *remembered],
        "conclusion": conclusion(hops, answer),
        "index_version": version,
        "found": answer.found or bool(remembered),
        "language": planned.language,
    }
