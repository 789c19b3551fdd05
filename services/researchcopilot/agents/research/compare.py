"""Is a question a comparison, and of what? 对比 A 与 B, A 和 B 的区别, compare A and B, A vs B …

Patterns, no model. What they do not recognise is answered as one question, which is no disaster;
so they take only what is surely a comparison.
"""

import re
from dataclasses import dataclass

from researchcopilot.agents.research.terms import Piece, pieces

MAX_SIDES = 4

_SIDE = r"[^。？?！!；;\n]{1,60}?"
_END = r"[。？?！!.\s]*$"
_AND = r"(?:与|和|跟|同|及|、|，|,|\bvs\b\.?|\bversus\b)"
_FILL = r"(?:有什么|有何|有哪些|有啥|是什么|之间|在哪|究竟|到底|的|主要)*"
_DIFFERENCE = r"(?:区别|差别|差异|不同|异同|优劣|优缺点|取舍|对比|比较)"
_ASK = r"(?:是什么|在哪里|在哪|有哪些|有多大|呢|吗)?"
_ASPECT = rf"(?:\s+(?:for|on|in terms of|regarding|with respect to|by)\s+(?P<aspect>{_SIDE}))?"
_ALSO = r"(?:\s+(?:and|with|to|against|or|vs\.?|versus)\s+|,\s*)"
_DIFFER = r"(?:differ(?:ent)? from|compare (?:to|with|against))"

_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # 对比 A 与 B 的 X
        rf"^(?:请你?|帮我)?(?:对比|比较|对照)(?:一下|下)?[\s:：]*(?P<sides>{_SIDE}{_AND}{_SIDE})"
        rf"(?:的(?P<aspect>[^的]{{1,30}}))?{_END}",
        # A 和 B 有什么区别, A 与 B 在 X 方面的差异
        rf"^(?:请问)?(?P<sides>{_SIDE}{_AND}{_SIDE})(?:在(?P<aspect>{_SIDE})(?:上|方面|中|里))?"
        rf"{_FILL}{_DIFFERENCE}{_ASK}{_END}",
        # 用 A 还是 B
        rf"^(?:应该|该)?(?:选择|选|用)?\s*(?P<sides>{_SIDE}还是{_SIDE})(?:更?好)?呢?{_END}",
        # A vs B for X, A 对比 B
        rf"^(?P<sides>{_SIDE}\s*(?:对比|\bvs\b\.?|\bversus\b)\s*{_SIDE}){_ASPECT}{_END}",
        # compare A and B on X
        r"^(?:please |can you |could you )?(?:compare|contrast|comparison (?:of|between))\s+"
        rf"(?P<sides>{_SIDE}{_ALSO}{_SIDE}){_ASPECT}{_END}",
        # the difference between A and B
        r"\b(?:differences?|trade-?offs?|choice|choose|decide)\s+between\s+"
        rf"(?P<sides>{_SIDE}\s+(?:and|or)\s+{_SIDE}){_ASPECT}{_END}",
        # how does A differ from B
        rf"^how (?:do|does|is|are)\s+(?P<sides>{_SIDE}\s+{_DIFFER}\s+{_SIDE}){_ASPECT}{_END}",
        # how do A and B compare
        rf"^how (?:do|are|is)\s+(?P<sides>{_SIDE}\s+and\s+{_SIDE})\s+(?:differ(?:ent)?|compare)"
        rf"{_ASPECT}{_END}",
        # should I use A or B for X
        r"\b(?:should|shall) (?:i|we|you|one) (?:use|choose|pick|prefer|take)\s+"
        rf"(?P<sides>{_SIDE}\s+or\s+{_SIDE}){_ASPECT}{_END}",
    )
)
_SPLIT = re.compile(
    rf"\s*(?:{_AND}|还是|对比|\b(?:and|or|with|to|against)\b|{_DIFFER})\s*", re.IGNORECASE
)
_ARTICLE = re.compile(r"^(?:the|a|an|using)\s+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two to four sides as the question names them; `aspect` "" if it names none."""

    sides: tuple[str, ...]
    aspect: str


def comparison(question: str) -> Comparison | None:
    """What the question compares, or None. Each side has a word that can be searched."""
    for pattern in _PATTERNS:
        if found := pattern.search(question):
            sides = [_side(part) for part in _SPLIT.split(found["sides"])]
            sides = list(dict.fromkeys(side for side in sides if side and names_of(side)))
            if 2 <= len(sides) <= MAX_SIDES:
                return Comparison(tuple(sides), (found.groupdict().get("aspect") or "").strip())
    return None


def names_of(side: str) -> tuple[Piece, ...]:
    """The words without which a passage is not about this side at all."""
    return tuple(piece for piece in pieces(side) if not piece.soft)


def _side(text: str) -> str:
    return _ARTICLE.sub("", text.strip(" \t,，、。?？")).strip()
