"""The page of a daily report: Markdown from the facts of a period, in Chinese or English. Pure.

A manager reads it: first what matters in two sentences, then the answers of the day, then what was
slow, what failed and what is new; upkeep in one line at the end. What there was nothing of has no
section. Text from outside is shown as it is and never as markup.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from researchcopilot.agents.report_words import TEXT, Words
from researchcopilot.agents.research.plan import Language
from researchcopilot.agents.words import cut, date, plain, seconds, weekday

Facts = Mapping[str, Any]
DIGESTS, DOCUMENTS = 12, 8
SENTENCES = 2
QUESTION, SENTENCE, MESSAGE = 120, 240, 240


def headline(facts: Facts, language: Language) -> str:
    """`Daily report: Sunday, 29 November 2026`; of several days from the first to the last."""
    first, last = _days(facts["period"])
    words = TEXT[language]
    if first.date() == last.date():
        day = words.day.format(weekday=weekday(first, language), date=date(first, language))
    else:
        day = words.days.format(first=date(first, language), last=date(last, language))
    return words.title.format(day=day)


def write(facts: Facts, language: Language) -> str:
    """The whole page."""
    sections: Sequence[Callable[[Facts, Words], list[str]]] = (
        _summary, _agents, _digests, _slowest, _failures, _documents, _footer,
    )  # fmt: skip
    parts = [f"# {headline(facts, language)}"]
    for section in sections:
        if lines := section(facts, TEXT[language]):
            parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _days(period: Facts) -> tuple[datetime, datetime]:
    """The local days of the first and of the last moment."""
    zone = ZoneInfo(period["zone"])
    start, end = (datetime.fromisoformat(period[side]) for side in ("start", "end"))
    return start.astimezone(zone), (end - timedelta(microseconds=1)).astimezone(zone)


def _summary(facts: Facts, words: Words) -> list[str]:
    runs = facts["runs"]
    ended = runs["succeeded"] + runs["failed"] + runs["cancelled"]
    lines = []
    first, last = _days(facts["period"])
    missed = (last.date() - first.date()).days
    if missed and not facts["period"]["is_first"]:
        lines += [f"*{words.missed(missed)}*", ""]
    if not ended and not runs["open"]:
        lines.append(f"**{words.nothing}**")
    else:
        outcomes = [words.succeeded(runs["succeeded"])]
        outcomes += [words.failed(runs["failed"])] if runs["failed"] else []
        outcomes += [words.cancelled(runs["cancelled"])] if runs["cancelled"] else []
        lines.append(f"**{words.outcomes.format(outcomes=words.comma.join(outcomes))}**")
    if runs["median_s"] is not None and ended > 1:
        slowest = max(agent["slowest_s"] or 0.0 for agent in facts["agents"])
        half, most = (seconds(value, words.language) for value in (runs["median_s"], slowest))
        lines[-1] += words.space + words.half.format(half=half, most=most)
    if facts["documents"]["count"]:
        lines[-1] += words.space + words.new_documents(facts["documents"]["count"])
    if runs["open"]:
        lines[-1] += words.space + words.open(runs["open"])
    return lines


def _agents(facts: Facts, words: Words) -> list[str]:
    if not facts["agents"]:
        return []
    lines = [f"| {' | '.join(words.columns)} |", "|---" + "|--:" * (len(words.columns) - 1) + "|"]
    for agent in facts["agents"]:
        counts = [str(agent[status]) for status in ("succeeded", "failed", "cancelled")]
        times = [
            "–" if value is None else seconds(value, words.language)
            for value in (agent["median_s"], agent["slowest_s"])
        ]
        lines.append(f"| {' | '.join([plain(agent['agent']), *counts, *times])} |")
    return lines


def _digests(facts: Facts, words: Words) -> list[str]:
    items = facts["digests"]["items"][:DIGESTS]
    if not items:
        return []
    lines = [f"## {words.asked}"]
    for item in items:
        times = f" (×{item['times']})" if item["times"] > 1 else ""
        lines += ["", f"### {plain(cut(item['question'] or item['agent'], QUESTION))}{times}", ""]
        concluded = (item["conclusion"] or "").splitlines()[:SENTENCES]
        lines += [f"- {plain(cut(line, SENTENCE))}" for line in concluded] or [words.no_answer]
        lines += ["", f"*{_origin(item, words)}*"]
    left = facts["digests"]["count"] - sum(item["times"] for item in items)
    return lines + (["", words.more_digests(left)] if left else [])


def _origin(item: Facts, words: Words) -> str:
    """What stands behind an answer, how long it took, and which run it was."""
    sources = [
        words.earlier
        if source["kind"] == "memory"
        else words.document.format(title=plain(source["title"] or "?"))
        for source in item["sources"] or ()
    ]
    told = [words.sources.format(sources=words.pause.join(sources))] if sources else []
    told += [seconds(item["duration_s"] or 0.0, words.language), _run(item, words)]
    return " · ".join(told)


def _run(item: Facts, words: Words, key: str = "run_id") -> str:
    return f"{words.run} `{item[key]}`"


def _slowest(facts: Facts, words: Words) -> list[str]:
    if len(facts["slowest"]) < 2:
        return []  # the summary has said it
    lines = [f"## {words.slowest}", ""]
    for place, item in enumerate(facts["slowest"], start=1):
        what = plain(cut(item["question"] or item["agent"], QUESTION))
        took = seconds(item["seconds"], words.language)
        status = "" if item["status"] == "succeeded" else f" ({words.status[item['status']]})"
        lines.append(f"{place}. **{took}**{status} – {what} · {_run(item, words)}")
    return lines


def _failures(facts: Facts, words: Words) -> list[str]:
    if not facts["failures"]:
        return []
    lines = [f"## {words.failures}", ""]
    zone = ZoneInfo(facts["period"]["zone"])
    for place, item in enumerate(facts["failures"], start=1):
        last = datetime.fromisoformat(item["last_at"]).astimezone(zone)
        lines.append(
            f"{place}. **{item['count']} × {plain(item['agent'])}: {plain(item['type'] or '?')}**"
            f" – {plain(cut(item['message'] or '', MESSAGE))}"
        )
        told = [words.last.format(time=f"{last:%H:%M}"), _run(item, words, "last_run_id")]
        told.append(words.waiting(item["open"]) if item["open"] else words.dealt_with)
        lines.append(f"   *{' · '.join(told)}*")
    return lines


def _documents(facts: Facts, words: Words) -> list[str]:
    items = facts["documents"]["items"][:DOCUMENTS]
    if not items:
        return []
    lines = [f"## {words.documents}", ""]
    for item in items:
        size = f"{max(item['bytes'], 1) / 1024:,.1f} kB"
        replaces = f"{words.comma}{words.replaces}" if item["replaces"] else ""
        name = item["name"].replace("`", "'")
        lines.append(f"- {plain(item['title'])} (`{name}`{words.comma}{size}{replaces})")
    left = facts["documents"]["count"] - len(items)
    return lines + ([f"- {words.more_documents(left)}"] if left else [])


def _footer(facts: Facts, words: Words) -> list[str]:
    period = facts["period"]
    zone = ZoneInfo(period["zone"])
    start, end = (
        datetime.fromisoformat(period[side]).astimezone(zone) for side in ("start", "end")
    )
    done = sum(job["succeeded"] for job in facts["upkeep"])
    failed = sum(job["failed"] for job in facts["upkeep"])
    upkeep = words.upkeep(done) + (words.upkeep_failed(failed) if failed else words.none_failed)
    span = f"{start:%Y-%m-%d %H:%M} – {end:%Y-%m-%d %H:%M} ({period['zone']})"
    told = words.footer.format(workspace=plain(period["workspace"]), span=span, upkeep=upkeep)
    return ["---", "", f"*{told}*"]
