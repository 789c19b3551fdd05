"""Results and errors become text that Postgres takes. Whatever an agent returns or raises, there is
an answer: this path must neither fail nor hang."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from researchcopilot.core.errors import BadResult, Permanent, RetryLater, TimedOut
from researchcopilot.worker.result import (
    DEPTH_LIMIT,
    MESSAGE_LIMIT,
    TRACE_LIMIT,
    describe_error,
    encode_result,
    only_one,
)

LIMIT = 1_000_000
_any_text = st.text(st.characters(codec=None), max_size=20)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_any_text, inner, max_size=4),
    max_leaves=20,
)


@given(_json)
def test_any_json_is_encoded_clean_or_refused_with_its_place(value: Any) -> None:
    try:
        text = encode_result(value, LIMIT)
    except BadResult as error:
        assert "$" in error.message
        return
    text.encode()  # no lone surrogate
    assert "\x00" not in text and "\\u0000" not in text.replace("\\\\", "")
    json.loads(text)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_the_limit_of_depth_is_exact() -> None:
    assert encode_result(nested(DEPTH_LIMIT), LIMIT)
    for levels in (DEPTH_LIMIT + 1, 990, 100_000):
        with pytest.raises(BadResult, match="deeper than 100 levels"):
            encode_result(nested(levels), LIMIT)
    # Many brackets are not deep.
    assert encode_result([[]] * 1000, LIMIT)


def test_a_value_that_contains_itself_is_told_and_does_not_hang() -> None:
    alone: list[Any] = []
    alone.append(alone)
    doubled: list[Any] = [{1}]
    doubled += [doubled, doubled, {"again": doubled}]
    with pytest.raises(BadResult, match="contains itself"):
        encode_result(alone, LIMIT)
    with pytest.raises(BadResult, match=r"\$\[0\] is a value of type set"):
        encode_result(doubled, LIMIT)


def test_what_stands_in_many_places_is_looked_at_once() -> None:
    """A lattice has more paths than there are atoms; it must not be walked along each."""
    value: Any = {1}
    for _ in range(60):
        value = [value, value]
    with pytest.raises(BadResult, match="type set"):
        encode_result(value, LIMIT)


@pytest.mark.parametrize(
    ("value", "advice"),
    [({1}, "list"), (b"x", "decode"), (print, "convert"), (1j, "complex")],
)
def test_what_to_do_is_said(value: Any, advice: str) -> None:
    with pytest.raises(BadResult, match=advice):
        encode_result({"a": value}, LIMIT)


def test_a_coroutine_is_closed_so_that_nobody_warns_of_it() -> None:
    with pytest.raises(BadResult, match="async def"):
        encode_result(asyncio.sleep(0), LIMIT)


def test_the_limit_counts_bytes_and_names_the_setting_only_for_results() -> None:
    assert encode_result("é" * 49, 100) == '"' + "é" * 49 + '"'
    with pytest.raises(BadResult, match="RC_MAX_RESULT_BYTES"):
        encode_result("é" * 50, 100)
    with pytest.raises(BadResult) as refused:
        encode_result("é" * 50, 100, what="value of the step 'a'")
    assert "RC_" not in refused.value.message
    assert "value of the step 'a'" in refused.value.message


class Hostile(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


def test_an_error_that_fights_back_has_a_message_all_the_same() -> None:
    found = describe_error(Hostile())
    assert found["message"] == "Hostile (its message cannot be shown)"
    assert found["type"].endswith("Hostile")
    assert describe_error(ExceptionGroup("g", [ValueError("in"), Hostile()]))["message"]


@given(_any_text)
def test_any_message_is_clean_and_cut(text: str) -> None:
    found = describe_error(ValueError(text * 300))
    assert len(found["message"]) <= MESSAGE_LIMIT
    json.dumps(found, ensure_ascii=False).encode()
    assert "\x00" not in found["message"]


def test_the_end_of_a_long_trace_is_kept() -> None:
    found = describe_error(ValueError("x" * 50_000 + "the end"))
    assert len(found["trace"]) <= TRACE_LIMIT
    assert found["trace"].rstrip().endswith("the end")


def test_our_own_errors_have_names_people_can_group_by_and_a_trace_if_they_have_a_cause() -> None:
    assert describe_error(RetryLater("busy", after=1)) == {"type": "retry_later", "message": "busy"}
    assert describe_error(TimedOut("slow"), "  File x")["trace"] == "  File x"
    try:
        try:
            dict[str, int]()["key"]
        except KeyError as error:
            raise Permanent("no such key") from error
    except Permanent as error:
        found = describe_error(error)
    assert found["type"] == "permanent" and "KeyError" in found["trace"]


def test_a_group_of_one_is_what_it_holds_and_a_group_of_many_tells_them() -> None:
    inner = Permanent("inner")
    assert only_one(ExceptionGroup("a", [ExceptionGroup("b", [inner])])) is inner
    many = ExceptionGroup("many", [inner, ValueError("other")])
    assert only_one(many) is many
    assert "Permanent: inner; ValueError: other" in describe_error(many)["message"]
