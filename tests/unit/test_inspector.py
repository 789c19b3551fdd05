"""The process that checks inputs against schemas: what it tells, and what we are told when it
cannot."""

import asyncio
import sys
from collections.abc import Iterator

import pytest

from researchcopilot.agents import inspector
from researchcopilot.agents.inspector import Inspector

pytestmark = pytest.mark.anyio
PATTERN = '{"pattern": "^(a+)+$"}'
NEVER = "a" * 60 + "!"


@pytest.fixture
def asked() -> Iterator[Inspector]:
    made = Inspector()
    yield made
    made.close()


async def test_it_tells_what_is_refused_and_where(asked: Inspector) -> None:
    """Protects: also of text that no line-based pipe may break, and one after the other."""
    odd = "\n\r\u2028\x85 日程 \U0001f600"
    many = [asked.check({"a": [odd, n]}, '{"properties": {"a": {"items": {"type": "string"}}}}')
            for n in range(20)]  # fmt: skip
    for n, told in enumerate(await asyncio.gather(*many)):
        assert told == ([(".a[1]", f"{n} is not of type 'string'")], None)
    assert await asked.check(odd, PATTERN) == (
        [("", f"{odd!r} does not match '^(a+)+$'")], None,
    )  # fmt: skip


async def test_a_check_without_an_end_costs_its_schema_a_minute(
    asked: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects: it is ended, once; others are checked; and after that time it is asked again."""
    async with asyncio.timeout(inspector.WAIT_S - 2):  # by its own limit, not by ours
        told = await asked.check(NEVER, PATTERN)
    assert told.refusals == [] and "within 1 s of computing" in str(told.trouble)
    assert await asked.check("b", PATTERN) == ([], None)
    assert (await asked.check(1, '{"type": "string"}')).refusals
    monkeypatch.setattr(inspector, "SET_ASIDE_S", 0.0)
    again = '{"pattern": "^(a+)+$", "title": "again"}'
    assert (await asked.check(NEVER, again)).trouble
    assert (await asked.check("b", again)).refusals


async def test_a_process_that_cannot_be_started_is_trouble_and_no_fault_of_a_request(
    asked: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects: a machine without room for one more process accepts runs all the same, and says
    why they were not checked; as soon as there is room they are."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        told = await asked.check("b", PATTERN)
        assert told.refusals == [] and "/nowhere/python" in str(told.trouble)
        patch.undo()
        patch.setattr(inspector, "MODULE", "researchcopilot.agents.nowhere")
        assert "ended with 1" in str((await asked.check("b", PATTERN)).trouble)
    assert (await asked.check("b", PATTERN)).refusals


async def test_who_stands_in_line_for_long_is_let_in_unchecked(
    asked: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects: many inputs that take half a second each, of somebody else, hold up no request for
    as long as all of them take."""
    monkeypatch.setattr(inspector, "LINE_S", 0.1)
    strict = '{"type": "string"}'
    slow, told = await asyncio.gather(asked.check(NEVER, PATTERN), asked.check(1, strict))
    assert "of computing" in str(slow.trouble)
    assert told.refusals == [] and "kept the process that checks busy" in str(told.trouble)
    assert (await asked.check(1, strict)).refusals
