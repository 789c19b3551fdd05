"""Cursors, without a server: ours come back as they were, anybody's else are refused."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from researchcopilot.api import cursors, documents, memories, reports, runs, schedules, sessions
from researchcopilot.api.problems import Problem


@given(st.text(max_size=60) | st.binary(max_size=40).map(lambda data: data.hex()))
def test_no_cursor_of_others_is_read(text: str) -> None:
    """Protects: a cursor that we did not make is a 422, never a surprise."""
    with pytest.raises(Problem) as caught:
        cursors.decode("runs", text, lambda values: values)
    assert caught.value.code == "bad_cursor"


POSITIONS: dict[str, tuple[Callable[[list[Any]], Any], type]] = {
    "documents": (documents._position, str),
    "memories": (memories._position, tuple),
    "messages": (sessions._position, int),
    "reports": (reports._position, datetime),
    "runs": (runs._position, tuple),
    "schedules": (schedules._position, str),
    "ticks": (schedules._moment, datetime),
}
ODD: list[Any] = [
    None,
    True,
    -1,
    1e308,
    2**70,
    [],
    {},
    "",
    "\0",
    "\ud800",
    "x" * 600,
    "-4712-01-01",
]


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_a_forged_cursor_is_a_position_or_a_422(name: str, odd: Any) -> None:
    """Protects: nothing reaches a query that is not of the type which it takes."""
    read, wanted = POSITIONS[name]
    for values in ((), (odd,), (odd, odd), ("2026-01-01T00:00:00+00:00", odd)):
        try:
            found = cursors.decode(name, cursors.encode(name, *values), read)
        except Problem as problem:
            assert problem.code == "bad_cursor"
        else:
            assert type(found) is wanted


def test_a_cursor_comes_back_only_to_its_list() -> None:
    """Protects: the cursor of one list means nothing to another."""
    cursor = cursors.encode("runs", "2026-01-01T00:00:00+00:00", "ü")
    assert cursors.decode("runs", cursor, tuple) == ("2026-01-01T00:00:00+00:00", "ü")
    assert cursors.decode("runs", None, tuple) is None
    with pytest.raises(Problem):
        cursors.decode("messages", cursor, tuple)
