"""A short chaos test: every fault at least once while some hundred runs go through."""

import pytest
from tests.chaos.driver import Options
from tests.chaos.faults import LAST
from tests.chaos.faults import SHORT as DECK
from tests.chaos.runs import run

SHORT = Options(
    runs=250, seconds=10.0, faults=0, lease_s=1.0, pause_s=0.3, at_once=4, longest_s=1.5,
    rest_s=30.0, deck=DECK,
)  # fmt: skip


def test_nothing_is_lost_while_everything_dies(capsys: pytest.CaptureFixture[str]) -> None:
    """kill -9, SIGSTOP past the lease, FLUSHALL, restarts: each accepted run ends exactly once."""
    said: list[str] = []
    result = run(SHORT, said.append)
    assert not result.findings, "\n".join([*said, result.text])
    struck = {blow.fault.name for blow in result.course.blows}
    assert struck == {fault.name for fault in (*DECK, *LAST)}
    assert result.course.tally.accepted.count >= 250
    total = result.lines[-1]
    # It hurt: runs were in the hands of what died, and were executed again.
    assert total.touched > 0
    assert total.again > 0
