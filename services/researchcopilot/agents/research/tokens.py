"""Text into the tokens that are indexed and searched.

Words of alphabets stay whole with what belongs to them (`c++`, `gpt-4o`, `pg_bigm`, `node.js`) and
give their parts as well, so that `free-threading` is found by `threading`; English inflections are
cut. Chinese, Japanese and Korean runs become bigrams: no dictionary to be wrong, measured better
than words or single characters. A character that stands alone is a token of its own, and every
chunk also keeps its set of single characters (`characters`), which only questions use that are
left with one character. Tokens hold no white space: the index splits at it.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache

MAX_TOKEN = 64

# Han with extensions, kana with the long mark, Hangul, bopomofo; no punctuation.
CJK = (
    "\u3005\u3007\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U000323af"
)
FIRST_CJK = "\u3004"
# Marks that belong to a letter before them where no composed letter exists (Hindi, Thai, …).
_LETTER = rf"(?:(?![{CJK}])[\w\u0300-\u036f\u0900-\u0dff\u0e00-\u0eff])"
_RUN = re.compile(
    rf"(?P<cjk>[{CJK}]+)"
    rf"|(?P<word>{_LETTER}+(?:[.\-'+#]{_LETTER}+)*(?:(?<=[a-z])(?:\+\+|#)(?!{_LETTER}))?)"
)
_JOINTS = re.compile(r"[._\-'+#]+")
_VOWEL = re.compile("[aeiouy]")
_NOUN_ENDINGS = (
    ("ization", "iz"),
    ("isation", "iz"),
    ("izer", "iz"),
    ("iser", "iz"),
    ("ation", "at"),
    ("ency", "ent"),
    ("ence", "ent"),
    ("ancy", "ant"),
    ("ance", "ant"),
    ("ly", ""),
)


def normalize(text: str) -> str:
    """One form for what looks or sounds the same: full width, ligatures, case; and the apostrophe
    and the hyphen that NFKC leaves apart."""
    text = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFKC", text).replace("\u2019", "'").replace("\u2010", "-")


def tokens(text: str) -> list[str]:
    """The tokens of a text in order; a word's whole comes before its parts."""
    return [token for run, is_cjk in runs(text) for token in tokens_of_run(run, is_cjk)]


def runs(text: str) -> Iterator[tuple[str, bool]]:
    """(run, is it CJK?) of the normalized text: a word, or CJK characters without a gap."""
    for found in _RUN.finditer(normalize(text)):
        yield found.group(), found.lastgroup == "cjk"


def tokens_of_run(run: str, is_cjk: bool) -> list[str]:
    return bigrams(run) if is_cjk else word_tokens(run)


def bigrams(run: str) -> list[str]:
    """召回率 → 召回 回率; a lone character stays one."""
    return [run[i : i + 2] for i in range(len(run) - 1)] or [run]


@lru_cache(maxsize=32_768)
def _word_tokens(word: str) -> tuple[str, ...]:
    word = word.removesuffix("'s").strip("_")
    if not word.isascii():
        word = _without_accents(word)
    whole = stem(word)[:MAX_TOKEN]
    parts = [part for part in _JOINTS.split(word) if len(part) > 1]
    if not word or parts == [word] or not any(part.isalpha() for part in parts):
        return (whole,) if word else ()
    return (whole, *(stem(part)[:MAX_TOKEN] for part in parts if part != word))


def word_tokens(word: str) -> list[str]:
    """gpt-4o → gpt-4o gpt 4o; 3.11 stays one; threads → thread."""
    return list(_word_tokens(word[: 4 * MAX_TOKEN]))


def characters(found: Iterable[str]) -> list[str]:
    """The set of CJK characters in these tokens, sorted."""
    return sorted({char for token in found if token[0] > FIRST_CJK for char in token})


def _without_accents(word: str) -> str:
    plain = unicodedata.normalize("NFD", word)
    plain = "".join(char for char in plain if not "\u0300" <= char <= "\u036f")
    return unicodedata.normalize("NFC", plain)


def stem(word: str) -> str:
    """Plural, -ed, -ing and -ly cut; of long words also -ation, -ency and the like, so that
    evaluate meets evaluation and concurrency meets concurrent. Short words such as agency stay
    apart from agent. Only plain English-looking words; `redis`, `bias`, `gpt-4o` stay as they are.
    """
    if len(word) < 4 or not (word.isascii() and word.isalpha()):
        return word
    return _without_e(_without_noun_ending(_without_participle(_without_plural(word))))


def _without_plural(word: str) -> str:
    if word.endswith(("sses", "shes", "ches", "xes", "zzes")):
        return word[:-2]
    if word.endswith("ies"):
        return word[:-3] + "y" if len(word) > 4 else word[:-1]
    if word.endswith("s") and not word.endswith(("ss", "us", "is", "as", "os")):
        return word[:-1]
    return word


def _without_participle(word: str) -> str:
    for ending in ("ing", "ed"):
        root = word[: -len(ending)]
        if word.endswith(ending) and len(root) > 2 and _VOWEL.search(root):
            if root[-1] == root[-2] and root[-1] not in "lsz":
                return root[:-1]
            return root
    return word


def _without_noun_ending(word: str) -> str:
    if word.endswith(("ise", "is")) and len(word) > 6:
        return word.removesuffix("e")[:-1] + "z"
    if len(word) < 9:
        return word
    for ending, kept in _NOUN_ENDINGS:
        if word.endswith(ending):
            return word[: -len(ending)] + kept
    return word


def _without_e(word: str) -> str:
    """scale, scaled and scaling end alike: all without the e."""
    return word[:-1] if len(word) > 4 and word.endswith("e") and word[-2] not in "e" else word
