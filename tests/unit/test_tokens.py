"""Tokens: what belongs together stays together, and both sides of a search are cut alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from researchcopilot.agents.research.tokens import characters, stem, tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("召回率", ["召回", "回率"]),
        ("锁", ["锁"]),
        ("RAG 的召回率", ["rag", "的召", "召回", "回率"]),
        ("C++ and C#", ["c++", "and", "c#"]),
        ("c++。下一句", ["c++", "下一", "一句"]),
        ("gpt-4o", ["gpt-4o", "gpt", "4o"]),
        ("pg_bigm", ["pg_bigm", "pg", "bigm"]),
        ("Node.js v0.8.0, 3.11.", ["node.js", "node", "js", "v0.8.0", "3.11"]),
        ("ＧＰＴ－４ｏ　Ａ", ["gpt-4o", "gpt", "4o", "a"]),
        ("Python\u2019s free\u2010threading", ["python", "free-threading", "free", "thread"]),
        ("Café", ["cafe"]),
        ("__init__", ["init"]),
        ("データベース", ["デー", "ータ", "タベ", "ベー", "ース"]),
        ("ﾃﾞｰﾀ", ["デー", "ータ"]),
        ("데이터베이스 선택", ["데이", "이터", "터베", "베이", "이스", "선택"]),
        ("हिन्दी", ["हिन्दी"]),
        ("k@ 「」，… --- ++", ["k"]),
    ],
)
def test_words_stay_whole_and_han_becomes_bigrams(text: str, expected: list[str]) -> None:
    assert tokens(text) == expected


@pytest.mark.parametrize(
    "family",
    [
        "lock locks locked locking",
        "scale scales scaled scaling",
        "query queries",
        "process processes",
        "evaluate evaluates evaluation evaluating",
        "normalise normalize normalised normalization",
        "concurrent concurrency concurrently",
        "idempotent idempotency idempotence",
        "tokenize tokenizer tokenizers",
        "run running",
    ],
)
def test_inflections_meet(family: str) -> None:
    assert len({stem(word) for word in family.split()}) == 1


@pytest.mark.parametrize("pair", ["agent agency", "current currency", "use us"])
def test_different_words_stay_apart(pair: str) -> None:
    one, other = pair.split()
    assert stem(one) != stem(other)


def test_names_are_not_cut() -> None:
    for name in ("redis", "asyncio", "class", "status", "bias", "gpt-4o"):
        assert stem(name) == name


def test_the_characters_of_a_text_are_a_set() -> None:
    assert characters(tokens("行锁与表锁 lock 是")) == sorted("行锁与表是")


@given(st.text())
def test_any_text_gives_tokens_that_an_index_can_split_at_spaces(text: str) -> None:
    found = tokens(text)
    assert " ".join(found).split() == found
    assert all(0 < len(token) <= 64 for token in found)
    assert found == tokens(text.replace("\n", " "))


@given(st.text(alphabet="的召回率锁aA1-._+# \n，"), st.text(alphabet="召回率abc -"))
def test_a_part_cut_off_at_a_space_is_found_in_the_whole(one: str, other: str) -> None:
    assert set(tokens(one)) <= set(tokens(f"{one} {other}"))
