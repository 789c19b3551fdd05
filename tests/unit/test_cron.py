"""Cron lines: what is taken, and when they fire where local time jumps."""

import random
import zoneinfo
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.chaos.zones import DRAWN, LINES, disagreements
from tests.unit.ticks_reference import Change, changes, some_line

from researchcopilot.core import cron
from researchcopilot.core.errors import BadInput

# Zones whose changes are unlike others': half an hour, at midnight, a minute after it, two hours, a
# whole day left out, Ramadan, twice the same hour of a Saturday, no longer any.
ODD = (
    "Australia/Lord_Howe", "America/Sao_Paulo", "America/St_Johns", "Antarctica/Troll",
    "Pacific/Apia", "Africa/Casablanca", "America/Havana", "Asia/Pyongyang", "America/Caracas",
    "Asia/Beirut", "Africa/Cairo", "Atlantic/Azores", "America/Nuuk", "Europe/Dublin",
    "Europe/Istanbul", "Pacific/Chatham", "Asia/Gaza", "Europe/Volgograd",
)  # fmt: skip


def local(line: str, zone: str, start: str, number: int) -> list[str]:
    """The first ticks after `start` (UTC), in local time with their offset."""
    rule = cron.parse(line, zone)
    found: list[str] = []
    moment: datetime | None = datetime.fromisoformat(start).replace(tzinfo=UTC)
    while len(found) < number:
        assert moment is not None
        moment = rule.after(moment)
        assert moment is not None
        shown = moment.astimezone(zoneinfo.ZoneInfo(zone)).isoformat(timespec="minutes")
        found.append(shown[5:])
    return found


def test_a_local_time_that_does_not_exist_fires_once_right_after_the_gap() -> None:
    ticks = local("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", 2)
    assert ticks == ["03-29T03:00+02:00", "03-30T02:30+02:00"]
    # Several of them are one tick; so is the tick that stands there anyway.
    ticks = local("*/15 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00", 3)
    assert ticks == ["03-29T03:00+02:00", "03-29T03:15+02:00", "03-29T03:30+02:00"]


def test_one_that_comes_twice_fires_once_for_fixed_times() -> None:
    ticks = local("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", 2)
    assert ticks == ["10-25T02:30+02:00", "10-26T02:30+01:00"]
    # Also if it is asked for in between, and in the second of the two hours.
    for start in ("2026-10-25T00:45", "2026-10-25T01:10"):
        assert local("30 2 * * *", "Europe/Berlin", start, 1) == ["10-26T02:30+01:00"]


def test_hourly_and_finer_rules_follow_real_time() -> None:
    ticks = local("0 * * * *", "Europe/Berlin", "2026-10-24T23:30", 4)
    assert ticks == ["10-25T02:00+02:00", "10-25T02:00+01:00", "10-25T03:00+01:00",
                     "10-25T04:00+01:00"]  # fmt: skip
    ticks = local("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:10", 3)
    assert ticks == ["03-29T01:30+01:00", "03-29T03:00+02:00", "03-29T03:30+02:00"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0 */2 * * *", "0 0,2,4,6,8,10,12,14,16,18,20,22 * * *"),
        ("*/20 2 * * *", "0,20,40 2 * * *"),
        ("5 * * * *", "5 0-23 * * *"),
        ("5 * * * *", "5 */1 * * *"),
    ],
)
def test_the_rule_is_not_in_the_spelling(one: str, other: str) -> None:
    """Protects: lines that name the same times fire at the same moments, on every day."""
    for start in ("2026-03-28T12:00", "2026-10-24T12:00"):
        assert local(one, "Europe/Berlin", start, 30) == local(other, "Europe/Berlin", start, 30)


def test_a_day_that_is_left_out_fires_right_after_it() -> None:
    """Samoa had no 30 December 2011."""
    ticks = local("0 12 * * *", "Pacific/Apia", "2011-12-29T00:00", 3)
    assert ticks == ["12-29T12:00-10:00", "12-31T00:00+14:00", "12-31T12:00+14:00"]


@pytest.mark.parametrize("name", ODD)
def test_odd_zones_agree_with_the_reference(name: str) -> None:
    """Protects: around two changes of each odd zone, at every line, from every moment."""
    chance = random.Random(name)
    for change in chance.sample(changes(name), 2):
        lines = (*LINES, *(some_line(chance) for _ in range(DRAWN)))
        assert disagreements(name, change, lines, chance) == []


def test_any_zone_agrees_with_the_reference() -> None:
    """Protects: a sample of all zones; `python -m tests.chaos.zones` looks at every change."""
    chance = random.Random(2040)
    for name in chance.sample(sorted(cron.zones()), 12):
        for change in sample(changes(name), chance):
            assert disagreements(name, change, LINES, chance) == []


def sample(found: list[Change], chance: random.Random) -> list[Change]:
    return chance.sample(found, min(2, len(found)))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0 0 30 2 *", "never fires"),
        ("0 0 31 4,6,9,11 *", "never fires"),
        ("0 0 * *", "has 4 fields"),
        ("*/5 * * * * *", "for seconds take interval_s"),
        ("@reboot", "@hourly, @daily"),
        ("@daily 5 * * *", "minute"),
        ("*/90 * * * *", "every 90 minutes cannot be told by cron: take interval_s"),
        ("0 1-5/36 * * *", "every 36 hours"),
        ("0 0 */32,5 * *", "every 32 days"),
        ("60 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day-of-month"),
        ("* * * 13 *", "month"),
        ("* * * * 8", "day-of-week"),
        ("*/0 * * * *", "minute"),
        ("5-1 * * * *", "minute"),
        ("", "has 0 fields"),
        ("零 * * * *", "five fields"),
        ("0 0 * * " + "1," * 200 + "1", "five fields"),
    ],
)
def test_what_is_no_cron_line_is_refused(line: str, words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        cron.parse(line, "UTC")
    assert caught.value.field == "cron"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@ANNUALLY", "0 0 1 1 *"),
    ],
)
def test_names_of_cron_lines(name: str, line: str) -> None:
    """Protects: what every crontab takes is taken here, and fires like the line it stands for."""
    for start in ("2026-03-28T22:00", "2026-10-24T21:00"):
        assert local(name, "Europe/Berlin", start, 4) == local(line, "Europe/Berlin", start, 4)


def test_a_step_as_long_as_its_field_is_the_field() -> None:
    assert local("*/60 */24 * * *", "UTC", "2026-03-28T22:00", 1) == ["03-29T00:00+00:00"]


def test_a_line_that_is_right_and_never_fires_says_none() -> None:
    """The 20th of a month is never its last Monday."""
    assert cron.parse("0 0 */20 * 1L", "UTC").after(datetime(2026, 1, 1, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    ("zone", "words"),
    [
        ("Europe/Belin", "did you mean Europe/Berlin"),
        ("Europe", "IANA"),
        ("../etc/passwd", "IANA"),
        ("CST-8", "IANA"),
        ("", "Asia/Shanghai"),
        ("Asia/Shanghai\0", "IANA"),
        ("localtime", "IANA"),
        ("Factory", "IANA"),
        ("x" * 100_000, "IANA"),
    ],
)
def test_what_is_no_zone_is_refused(zone: str, words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        cron.parse("0 0 * * *", zone)
    assert caught.value.field == "timezone"


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789*/-,#LWMONSUNJAN? \t", max_size=40) | st.text(max_size=30))
def test_any_text_is_taken_or_refused(line: str) -> None:
    """Protects: whatever a parser stumbles over is a refusal; what is taken gives ticks that only
    go forward."""
    try:
        rule = cron.parse(line, "Europe/Berlin")
    except BadInput:
        return
    moment: datetime | None = datetime(2026, 3, 28, tzinfo=UTC)
    for _ in range(3):
        assert moment is not None
        tick = rule.after(moment)
        if tick is None:
            return
        assert tick > moment
        assert tick.utcoffset() == timedelta(0)
        moment = tick
