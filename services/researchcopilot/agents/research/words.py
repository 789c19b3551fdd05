"""The word lists of words.txt: function words, words that count for less, abbreviations, hints."""

import re
from importlib.resources import files
from typing import Final

_SECTION = re.compile(r"^\[(.+?)\].*$", re.MULTILINE)


def _sections() -> dict[str, frozenset[str]]:
    text = (files(__package__) / "words.txt").read_text(encoding="utf-8")
    parts = _SECTION.split(text)[1:]
    return {
        name: frozenset(words.split()) for name, words in zip(parts[::2], parts[1::2], strict=True)
    }


_WORDS: Final = _sections()

STOP_EN: Final = _WORDS["stop en"]
SOFT_EN: Final = _WORDS["soft en"]
STOP_ZH: Final = _WORDS["stop zh"]
SOFT_ZH: Final = _WORDS["soft zh"]
KEEP_ZH: Final = _WORDS["keep zh"]
ABBREVIATIONS: Final = _WORDS["abbreviations"]


def hints(kind: str, language: str) -> str:
    """What answers to a kind of question often say: "evaluate", "how", "why"; "zh", "en"."""
    return " ".join(sorted(_WORDS[f"{kind} {language}"]))
