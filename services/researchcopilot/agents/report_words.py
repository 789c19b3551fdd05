"""The words of the daily report, in English and in Chinese."""

from collections.abc import Callable
from dataclasses import dataclass

from researchcopilot.agents.research.plan import Language
from researchcopilot.agents.words import number

Counted = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Words:
    """Sentences with places to fill in, and those that depend on a number."""

    language: Language
    space: str
    comma: str
    pause: str
    title: str
    day: str
    days: str
    nothing: str
    outcomes: str
    half: str
    columns: tuple[str, ...]
    asked: str
    no_answer: str
    sources: str
    document: str
    earlier: str
    run: str
    slowest: str
    failures: str
    last: str
    dealt_with: str
    documents: str
    replaces: str
    none_failed: str
    footer: str
    status: dict[str, str]
    missed: Counted
    succeeded: Counted
    failed: Counted
    cancelled: Counted
    new_documents: Counted
    open: Counted
    more_digests: Counted
    waiting: Counted
    more_documents: Counted
    upkeep: Counted
    upkeep_failed: Counted


_EN = Words(
    language="en",
    space=" ",
    comma=", ",
    pause=", ",
    title="Daily report: {day}",
    day="{weekday}, {date}",
    days="{first} to {last}",
    nothing="Nothing was asked.",
    outcomes="{outcomes}.",
    half="Half of them took {half} or less, the slowest {most}.",
    columns=("Agent", "Succeeded", "Failed", "Cancelled", "Median", "Slowest"),
    asked="What was asked",
    no_answer="- The corpus had no answer.",
    sources="from {sources}",
    document="{title}",
    earlier="earlier runs",
    run="run",
    slowest="What took longest",
    failures="What failed",
    last="last at {time}",
    dealt_with="dealt with",
    documents="New documents",
    replaces="replaces an earlier text",
    none_failed=", none failed",
    footer="Workspace {workspace} · {span} · {upkeep}",
    status={"failed": "failed", "cancelled": "cancelled"},
    missed=lambda n: f"It also covers {number(n, 'day', 'days')} before, which had no report.",
    succeeded=lambda n: f"{number(n, 'run', 'runs')} succeeded",
    failed=lambda n: f"{n:,} failed",
    cancelled=lambda n: f"{n:,} {'was' if n == 1 else 'were'} cancelled",
    new_documents=lambda n: f"{number(n, 'document', 'documents')} came in.",
    open=lambda n: f"{number(n, 'run waits or is', 'runs wait or are')} under way.",
    more_digests=lambda n: f"… and {n:,} more.",
    waiting=lambda n: f"{number(n, 'waits', 'wait')} for somebody to replay or discard",
    more_documents=lambda n: f"… and {n:,} more",
    upkeep=lambda n: f"upkeep: {number(n, 'run', 'runs')} succeeded",
    upkeep_failed=lambda n: f", {n:,} failed",
)
_ZH = Words(
    language="zh",
    space="",
    comma="，",
    pause="、",
    title="日报：{day}",
    day="{date}（{weekday}）",
    days="{first}至{last}",
    nothing="没有新的提问。",
    outcomes="{outcomes}。",
    half="半数用时不超过 {half}，最慢的用了 {most}。",
    columns=("智能体", "成功", "失败", "取消", "中位用时", "最慢"),
    asked="当日问答",
    no_answer="- 语料库里没有答案。",
    sources="来源：{sources}",
    document="《{title}》",
    earlier="早先的研究",
    run="运行",
    slowest="最慢的运行",
    failures="失败",
    last="最近一次在 {time}",
    dealt_with="已处理",
    documents="新文档",
    replaces="替换了旧版本",
    none_failed="，没有失败",
    footer="工作区 {workspace} · {span} · {upkeep}",
    status={"failed": "失败", "cancelled": "取消"},
    missed=lambda n: f"本期也包括之前没有日报的 {n} 天。",
    succeeded=lambda n: f"{n:,} 个运行成功",
    failed=lambda n: f"{n:,} 个失败",
    cancelled=lambda n: f"{n:,} 个取消",
    new_documents=lambda n: f"新增 {n:,} 篇文档。",
    open=lambda n: f"还有 {n:,} 个在等待或执行。",
    more_digests=lambda n: f"……另有 {n:,} 个。",
    waiting=lambda n: f"{n:,} 个等待重放或放弃",
    more_documents=lambda n: f"……另有 {n:,} 篇",
    upkeep=lambda n: f"后台任务：{n:,} 个成功",
    upkeep_failed=lambda n: f"，{n:,} 个失败",
)

TEXT: dict[Language, Words] = {"en": _EN, "zh": _ZH}
