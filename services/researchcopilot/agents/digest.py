"""digest: some minutes after a run has succeeded, what it came to, as a message in its session.

    {"run_id": "…"}  →  a message of role `digest`: question, conclusion, sources, cost, duration

Its run is written by the finish of the run that it follows, once for ever. Killed anywhere and
claimed again it changes nothing: what it reads is terminal, and messages take one digest of a run.
A run that retention has removed meanwhile, or that had no session, is no failure.
"""

from collections import Counter
from typing import Any

from researchcopilot.agents.contract import Context, agent
from researchcopilot.agents.research.plan import Language, language_of
from researchcopilot.agents.words import cut, number, plain, question_in, seconds
from researchcopilot.core.errors import BadAgentInput
from researchcopilot.core.ids import parse_id
from researchcopilot.storage import digests
from researchcopilot.storage.digests import Ended

LONGEST = 600  # characters of a conclusion that its agent has not drawn itself
INPUT = {
    "type": "object",
    "properties": {"run_id": {"type": "string", "format": "uuid"}},
    "required": ["run_id"],
    "additionalProperties": False,
}

_TEXT: dict[Language, dict[str, str]] = {
    "zh": {
        "head": "**摘要：{question}**",
        "nothing": "语料库里没有答案。",
        "sources": "来源：{sources}",
        "source": "《{title}》（{count} 处）",
        "memory": "早先的研究（{count} 处）",
        "and": "、",
        "cost": "用时 {seconds}，其中执行 {executed}；尝试 {attempts} 次，步骤 {steps} 个，"
        "读取段落 {passages} 个。",
    },
    "en": {
        "head": "**Digest: {question}**",
        "nothing": "The corpus had no answer.",
        "sources": "Sources: {sources}",
        "source": "{title} ({count})",
        "memory": "earlier runs ({count})",
        "and": ", ",
        "cost": "It took {seconds}, {executed} of it at work: {attempts}, {steps}, {passages}.",
    },
}


@agent(
    queue="system",
    description="Sums up a run that succeeded, as a message in its session.",
    input_schema=INPUT,
    max_attempts=5,
)
async def digest(ctx: Context, input: Any) -> dict[str, Any]:  # noqa: A002
    """Returns {"run_id", "outcome"}: written, already, gone (the run), no_session."""
    run_id = _run_in(input)
    ended = await digests.read(ctx.db, ctx.run.workspace_id, run_id)
    if ended is None:
        outcome = "gone"
    elif ended.status != "succeeded":
        raise BadAgentInput(
            f"The run {run_id} is {ended.status}: only one that succeeded has a digest."
        )
    elif ended.session_id is None:
        outcome = "no_session"
    else:
        payload = summary(ended)
        written = await digests.write(ctx.db, ctx.run.workspace_id, run_id, payload)
        outcome = "written" if written else "already"
    return {"run_id": run_id, "outcome": outcome}


def _run_in(given: Any) -> str:
    found = given.get("run_id") if isinstance(given, dict) else None
    run_id = parse_id(found) if isinstance(found, str) else None
    if run_id is None:
        raise BadAgentInput('digest takes the id of a run: {"run_id": "…"}.')
    return run_id


def summary(ended: Ended) -> dict[str, Any]:
    """The payload of the message; `content` is Markdown in the question's language."""
    result = ended.result if isinstance(ended.result, dict) else {}
    question = question_in(ended.input)
    language = _language(result, question)
    cost = {
        "attempts": ended.attempts,
        "claims": ended.claims,
        "steps": ended.steps,
        "passages": ended.passages,
    }
    found = {
        "run_id": ended.run_id,
        "agent": ended.agent,
        "question": question,
        "conclusion": _conclusion(result),
        "sources": _sources(result),
        "cost": cost,
        "duration_s": round(ended.seconds, 3),
        "executed_s": round(ended.executed_s, 3),
        "language": language,
    }
    return {"content": _content(found, language), **found}


def _language(result: dict[str, Any], question: str) -> Language:
    said = result.get("language")
    return "zh" if said == "zh" else "en" if said == "en" else language_of(question)


def _conclusion(result: dict[str, Any]) -> str:
    """What the agent concluded; of one that draws no conclusion the beginning of its answer."""
    drawn = result.get("conclusion")
    if isinstance(drawn, str):
        return drawn
    answer = result.get("answer")
    return cut(answer, LONGEST) if isinstance(answer, str) else ""


def _sources(result: dict[str, Any]) -> list[dict[str, Any]]:
    """What was cited, most often first: documents by id and title, memories all together."""
    cited = result.get("citations")
    found = [one for one in cited if isinstance(one, dict)] if isinstance(cited, list) else []
    keys = [
        ("memory", None, None)
        if one.get("kind") == "memory"
        else ("document", one.get("document_id"), str(one.get("title") or one.get("name") or "?"))
        for one in found
    ]
    return [
        {"kind": kind, "document_id": document_id, "title": title, "citations": count}
        for (kind, document_id, title), count in Counter(keys).most_common()
    ]


def _content(found: dict[str, Any], language: Language) -> str:
    words, cost = _TEXT[language], found["cost"]
    question = plain(cut(found["question"] or found["agent"], 300))
    parts = [words["head"].format(question=question)]
    concluded = found["conclusion"].splitlines() or [words["nothing"]]
    parts.append("\n".join(f"- {line}" for line in concluded))
    if found["sources"]:
        listed = (
            words[source["kind"] if source["kind"] == "memory" else "source"].format(
                title=plain(source["title"] or ""), count=source["citations"]
            )
            for source in found["sources"]
        )
        parts.append(words["sources"].format(sources=words["and"].join(listed)))
    counts: dict[str, Any] = dict(cost)
    if language == "en":
        counts["attempts"] = number(cost["attempts"], "attempt", "attempts")
        counts["steps"] = number(cost["steps"], "step", "steps")
        counts["passages"] = number(cost["passages"], "passage read", "passages read")
    took = seconds(found["duration_s"], language)
    parts.append(
        words["cost"].format(
            seconds=took, executed=seconds(found["executed_s"], language), **counts
        )
    )
    return "\n\n".join(parts)
