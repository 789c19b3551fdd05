"""How digests and reports write things down, in Chinese and in English: seconds, dates, and text
from outside, which must not change the page it stands on."""

import re
from datetime import datetime
from typing import Any

from researchcopilot.agents.research.plan import Language

_MARKUP = re.compile(r"([\\`*_\[\]<>|#~])")
_WEEKDAYS: dict[Language, tuple[str, ...]] = {
    "zh": ("星期一", "星期二", "星期三", "星期四", "星期五", "星期六", "星期日"),
    "en": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
}
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip


def question_in(value: Any) -> str:
    """What was asked, on one line: the input if it is text, else its `question`; "" without one."""
    if isinstance(value, dict):
        value = value.get("question")
    return " ".join(value.split()) if isinstance(value, str) else ""


def cut(text: str, limit: int) -> str:
    """On one line, at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def plain(text: str) -> str:
    """As Markdown that shows just this: no markup, no HTML, no table cell of its own."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split())).replace("&", "&amp;")


def seconds(value: float, language: Language) -> str:
    """340 ms, 1.2 s, 3 min 20 s, 2 h 5 min; 毫秒, 秒, 分, 小时 in Chinese."""
    ms, s, m, h = (
        (" 毫秒", " 秒", " 分", " 小时") if language == "zh" else (" ms", " s", " min", " h")
    )
    if value < 0.9995:
        return f"{value * 1000:.0f}{ms}"
    if value < 59.95:
        return f"{value:.1f}{s}"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60}{m} {whole % 60}{s}"
    return f"{whole // 3600}{h} {whole % 3600 // 60}{m}"


def date(moment: datetime, language: Language) -> str:
    """29 November 2026, 2026年11月29日; of a local time."""
    if language == "zh":
        return f"{moment.year}年{moment.month}月{moment.day}日"
    return f"{moment.day} {_MONTHS[moment.month - 1]} {moment.year}"


def weekday(moment: datetime, language: Language) -> str:
    return _WEEKDAYS[language][moment.weekday()]


def number(count: int, one: str, many: str) -> str:
    """1 document, 2 documents."""
    return f"{count:,} {one if count == 1 else many}"
