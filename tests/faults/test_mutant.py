"""The machine behind `make mutate`: it tells a test that fails from one that cannot run, never says
red where nothing was noticed, and leaves the copy as it was."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.faults.__main__ import Proof
from tests.faults.fault import ROOT, Fault
from tests.faults.mutant import Copy, Seen

FAULT = Fault(
    1,
    "a schedule begins with its second tick",
    "this test",
    "its start may be a tick",
    "tests/unit/test_ticks.py::test_both_bounds_may_be_ticks",
    "services/researchcopilot/core/ticks.py",
    "moment = self.starts_at - _INSTANT",
    "moment = self.starts_at",
)
COMMENT = (
    "# So many ticks of a schedule are looked at one by one; older ones are told of in one row."
)
IMPORT = "from researchcopilot.core.cron import Cron"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    made = Copy(tmp_path_factory.mktemp("mutants") / "one")
    made.check()
    return made


def without(copy: Copy, fault: Fault) -> Seen:
    with copy.without(fault):
        return copy.run([fault.test])[fault.test]


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (FAULT, "AssertionError"),
        (replace(FAULT, line=COMMENT, instead=""), "green"),
        (replace(FAULT, line=IMPORT, instead=""), "it did not run"),
    ],
    ids=["needed", "needless", "breaks the import"],
)
def test_only_a_test_that_fails_as_it_should_is_a_proof(
    copy: Copy, fault: Fault, what: str
) -> None:
    seen, before = without(copy, fault), Seen("green", 0.0)
    assert seen.what == what, seen.text
    assert Proof(fault, before, seen).good is (what == "AssertionError")
    assert not Proof(replace(fault, red="TimeoutError"), before, seen).good
    assert not Proof(fault, seen, seen).good
    path = Path(fault.file)
    assert (copy.root / path).read_bytes() == (ROOT / path).read_bytes()


def test_one_that_hangs_is_ended_and_proves_nothing(copy: Copy) -> None:
    seen = copy.run([FAULT.test], limit_s=0.01)[FAULT.test]
    assert seen.what == "no end within 0.01 s"
