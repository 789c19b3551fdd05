"""Each tick exactly once: three schedulers with wrong clocks, killed, stopped, without their lock,
their Redis flushed. `python -m tests.chaos.ticks` is the long run of the same."""

from pathlib import Path

from tests.chaos.ticks import FLUSHED, OFFSETS, Program, run
from tests.conftest import Servers


def test_each_tick_exactly_once(
    servers: Servers, environment: dict[str, str], tmp_path: Path
) -> None:
    """Protects: whatever becomes of processes, clocks, lock and Redis: none missing, none twice,
    none early. Time that decides is the database's."""
    environ = {name: environment[name] for name in ("RC_DATABASE_URL", "RC_REDIS_URL")}
    report = run(Program(environ, tmp_path, servers.guard, seconds=7.0, faults=FLUSHED))
    assert report.findings == []
    assert report.ticks == report.runs >= 20
    # It has been where it hurts: clocks that far apart did fire.
    assert sum(number > 0 for number in report.by_clock.values()) >= 2, report
    assert min(OFFSETS) < 0 < max(OFFSETS)
