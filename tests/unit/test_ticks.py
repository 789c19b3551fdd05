"""Which ticks are due: all of them, or the newest hundred and from when on there were more."""

from datetime import UTC, datetime, timedelta
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from researchcopilot.core import cron
from researchcopilot.core.errors import BadInput
from researchcopilot.core.schedules import first_tick
from researchcopilot.core.ticks import MOST, Every, Timing, due

NOW = datetime(2026, 3, 29, 12, tzinfo=UTC)  # the day on which Berlin goes forward
RULES = st.builds(
    Every,
    st.floats(1, 4000).map(lambda seconds: round(seconds, 3)),
    st.integers(0, 10**6).map(lambda seconds: NOW - timedelta(seconds=seconds)),
) | st.sampled_from(
    [
        cron.parse(line, "Europe/Berlin")
        for line in ("* * * * *", "*/7 1-3 * * *", "0 * * * SUN", "30 2 * * *", "* 2 1 * *")
    ]
)


@settings(deadline=None, max_examples=60)
@given(RULES, st.integers(0, 400_000), st.integers(0, 999_999))
def test_due_is_what_counting_says(rule: Every | cron.Cron, away: int, part: int) -> None:
    """Protects: however long nobody looked, nothing due is forgotten and nothing is invented."""
    timing = Timing(rule)
    now = NOW + timedelta(microseconds=part)
    first = timing.after(now - timedelta(seconds=away))
    if first is None or first > now:
        return
    every = list(takewhile(lambda tick: tick <= now, timing.ticks(first)))
    found = due(timing, first, now)
    assert list(found.ticks) == every[-MOST:]
    assert found.older == (first if len(every) > MOST else None)
    assert found.following == timing.after(every[-1])


@pytest.mark.parametrize("line", ["* * * * *", "*/5 * * * *", "0 8 * * *", "*/7 1-3 * * *"])
@pytest.mark.parametrize("days", [1, 30, 365, 3650])
def test_a_long_absence_costs_little(line: str, days: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects: after a weekend without a scheduler, thousands of schedules are worked out at once,
    and delayed runs wait for it."""
    asked = []
    after = cron.Cron.after

    def counting(rule: cron.Cron, moment: datetime) -> datetime | None:
        asked.append(moment)
        return after(rule, moment)

    timing = Timing(cron.parse(line, "Europe/Berlin"))
    first = timing.after(NOW - timedelta(days=days))
    assert first is not None
    monkeypatch.setattr(cron.Cron, "after", counting)
    found = due(timing, first, NOW)
    assert len(found.ticks) <= MOST
    assert len(asked) < 15 * MOST, len(asked)


@pytest.mark.parametrize("line", ["* * 16 2 *", "*/2 * 29 2 *", "0 0 1 1 *", "* 3 * 3 SUN"])
@pytest.mark.parametrize("days", [300, 1016, 3000, 9000])
@pytest.mark.parametrize("now", [NOW, datetime(2026, 12, 10, 4, 28, 18, tzinfo=UTC)])
def test_the_newest_are_found_where_ticks_come_in_bursts(
    line: str, days: int, now: datetime
) -> None:
    """Protects: no rule is so uneven that looking from the end misses one, or never ends."""
    timing = Timing(cron.parse(line, "Europe/Berlin"))
    first = timing.after(now - timedelta(days=days))
    assert first is not None
    if first > now:
        return
    found = due(timing, first, now)
    assert found.ticks[-1] <= now
    ticks = [*found.ticks, found.following]
    assert [timing.after(tick) for tick in found.ticks] == ticks[1:]
    if found.older is None:
        assert found.ticks[0] == first
    else:
        assert (found.older, len(found.ticks)) == (first, MOST)


@given(st.floats(1, 10_000), st.integers(-(10**7), 10**7))
def test_an_interval_is_a_grid(seconds: float, offset: int) -> None:
    """Protects: the next tick depends on the anchor alone, not on who asked when before."""
    rule = Every(seconds, NOW)
    moment = NOW + timedelta(seconds=offset)
    tick = rule.after(moment)
    assert tick is not None
    assert tick > moment
    if tick > NOW:
        assert tick - moment <= timedelta(seconds=seconds) + timedelta(microseconds=1)
        assert (tick - NOW) % timedelta(seconds=seconds) == timedelta(0)
    else:
        assert tick == NOW


def test_both_bounds_may_be_ticks() -> None:
    hour = timedelta(hours=1)
    timing = Timing(Every(3600, NOW), starts_at=NOW + hour, ends_at=NOW + 3 * hour)
    assert list(timing.ticks(timing.after(NOW - 100 * hour))) == [
        NOW + hour, NOW + 2 * hour, NOW + 3 * hour
    ]  # fmt: skip


@pytest.mark.parametrize("rule", [Every(60, NOW), cron.parse("* * * * *", "Asia/Tokyo")])
def test_a_start_before_all_time_is_no_start(rule: Every | cron.Cron) -> None:
    """Protects: the first moment that a calendar knows, which has none before it."""
    ages_ago = datetime.min.replace(tzinfo=UTC)
    assert Timing(rule, starts_at=ages_ago).after(NOW) == Timing(rule).after(NOW)


@pytest.mark.parametrize(
    ("timing", "field"),
    [
        (Timing(cron.parse("0 0 */20 * 1L", "UTC")), "cron"),
        (Timing(Every(60, NOW), ends_at=NOW - timedelta(days=1)), "ends_at"),
        (Timing(cron.parse("0 0 1 1 *", "UTC"), ends_at=NOW + timedelta(days=1)), "ends_at"),
        (
            Timing(
                cron.parse("0 0 1 1 *", "UTC"),
                starts_at=NOW + timedelta(days=1),
                ends_at=NOW + timedelta(days=2),
            ),
            "ends_at",
        ),
    ],
)
def test_what_never_fires_says_which_field_is_to_blame(timing: Timing, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        first_tick(timing, NOW)
    assert caught.value.field == field
