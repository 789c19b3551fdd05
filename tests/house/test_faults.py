"""The catalogue of known faults fits the tree: `make mutate`, which takes minutes, is not the first
to find that a line has moved or a test has another name."""

import pytest
from tests.faults.catalogue import FAULTS
from tests.faults.fault import BadFault, Fault, check, chosen


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.number))
def test_a_fault_has_its_line_once_and_its_test(fault: Fault) -> None:
    """If this fails: say in tests/faults/ which line protects us now, and run `make mutate`."""
    check(fault)


def test_every_known_fault_is_there_once() -> None:
    assert [fault.number for fault in FAULTS] == list(range(1, len(FAULTS) + 1))
    assert len(FAULTS) >= 25


def test_what_does_not_fit_is_told() -> None:
    one = FAULTS[0]
    for text, words in ((f"{one.line}\n" * 2, "2 times"), (f"if 1:\n  {one.line}\n", "no Python")):
        with pytest.raises(BadFault, match=words):
            one.mutated(text)
    assert one.mutated(f"if 1:\n  {one.line}\nelse:\n  2\n".replace("if 1:", "if 1:\n  1"))
    with pytest.raises(BadFault, match="no fault 99"):
        chosen(FAULTS, [1, 99])
