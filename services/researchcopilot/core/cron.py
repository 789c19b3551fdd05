"""Cron lines in a time zone: which moment is the next one.

The calendar is cronsim's, asked without a zone; daylight saving is ours, since no library that we
read follows one rule everywhere. The rule does not depend on how a line is spelled:

- A line that fires in every hour of its days (`0 * * * *`, `*/10 0-23 * * *`) follows real time: it
  fires at each moment whose local time fits, twice in an hour that comes twice.
- Any other line names hours, and each of its local times fires once a day: one that does not exist
  right after the gap, one that comes twice the first time.

Five fields as in Debian's cron (also L, LW, MON#2), or a name like @daily; seconds are what
`interval_s` is for.
"""

import copy
import difflib
import re
import zoneinfo
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache

from cronsim import CronSim

from researchcopilot.core.errors import BadInput

MAX_LINE = 200
_FIELDS = ("minute", "hour", "day of the month", "month", "day of the week")
_NAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# How many of each field's units make one of the next: a longer step is taken by parsers, and lost.
_SPANS = ((60, "minutes"), (24, "hours"), (31, "days"), (12, "months"), (7, "weekdays"))
_STEP = re.compile(r"/(\d+)")
_ALL_HOURS = set(range(24))
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_ANY_TIME = datetime(2000, 1, 1)


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron line in a zone. Make it by `parse`, which checks both."""

    line: str
    timezone: str

    def after(self, moment: datetime) -> datetime | None:
        """The first tick later than `moment`, in UTC; None if there is none in 50 years."""
        calendar, zone = _calendar(self.line), zoneinfo.ZoneInfo(self.timezone)
        follow = _each_hour if calendar.hours == _ALL_HOURS else _fixed_times
        return follow(calendar, zone, moment.astimezone(UTC))


def parse(line: str, timezone: str) -> Cron:
    """Raises BadInput that names the field `cron` or `timezone` and says what is wrong with it."""
    check_zone(timezone)
    try:
        _calendar(line)
    except BadInput:
        raise
    except Exception as error:  # whatever a parser stumbles over is a line that we do not take
        if _fits_other_months(line):
            what = "never fires: none of its months has such a day"
        else:
            what = f"cannot be read ({str(error).lower() or type(error).__name__}); {_HELP}"
        raise BadInput(what, field="cron") from error
    return Cron(line, timezone)


def _fits_other_months(line: str) -> bool:
    """Is it only that the day does not exist in these months (`0 0 30 2 *`)?"""
    minute, hour, day, _, weekday = _spelt_out(line).split()
    try:
        _calendar(f"{minute} {hour} {day} * {weekday}")
    except Exception:
        return False
    return True


_HELP = f"a cron line has five fields: {', '.join(_FIELDS)}, like 0 8 * * MON-FRI"


@lru_cache(maxsize=4096)
def _calendar(line: str) -> CronSim:
    line = _spelt_out(line)
    fields = line.split()
    if len(line) > MAX_LINE or not line.isascii() or len(fields) != len(_FIELDS):
        hint = " (for seconds take interval_s)" if len(fields) == len(_FIELDS) + 1 else ""
        raise BadInput(f"has {len(fields)} fields{hint}; {_HELP}", field="cron")
    calendar = CronSim(line, _ANY_TIME)
    for field, (span, units) in zip(fields, _SPANS, strict=True):
        if (step := max(map(int, _STEP.findall(field)), default=0)) > span:
            what = f"every {step} {units} cannot be told by cron: take interval_s"
            raise BadInput(what, field="cron")
    return calendar


def _spelt_out(line: str) -> str:
    """The line that a name stands for."""
    name = line.strip().lower()
    if name.startswith("@") and len(name.split()) == 1:
        if name not in _NAMES:
            known = ", ".join(_NAMES)
            raise BadInput(f"is no name of a cron line: take one of {known}", field="cron")
        return _NAMES[name]
    return line


# Zones

# What lies beside them: another one on each machine, and none at all.
_NO_ZONES = frozenset({"localtime", "posixrules", "Factory"})


@lru_cache(maxsize=1)
def zones() -> frozenset[str]:
    """Every IANA zone that this machine or the package tzdata knows."""
    return frozenset(zoneinfo.available_timezones()) - _NO_ZONES


def check_zone(name: str) -> None:
    """Raises BadInput for what is no IANA zone."""
    if name not in zones():
        close = difflib.get_close_matches(name[:100], zones(), n=1)
        hint = f"did you mean {close[0]}?" if close else "like Asia/Shanghai, Europe/Berlin or UTC"
        raise BadInput(f"is not an IANA time zone: {name[:100]!r}; {hint}", field="timezone")


# Local times and moments


def _fixed_times(calendar: CronSim, zone: tzinfo, moment: datetime) -> datetime | None:
    local: datetime | None = moment.astimezone(zone).replace(tzinfo=None)
    while local is not None:
        local = _next(calendar, local)
        # In an hour that comes twice, the local times ahead may be moments that are past.
        if local is not None and (found := first_moment(local, zone)) > moment:
            return found
    return None


def _each_hour(calendar: CronSim, zone: tzinfo, moment: datetime) -> datetime | None:
    """Local time is even between two changes of the offset: look in one such stretch at a time."""
    start, offset = moment, _offset(moment, zone)
    while True:
        local = _next(calendar, (start + offset).replace(tzinfo=None))
        if local is None:
            return None
        found = local.replace(tzinfo=UTC) - offset
        change = _first_change(zone, moment, found)
        if change is None:
            return found
        # The change itself may fit: look from the second before it, with the offset after it.
        moment, start, offset = change, change - _SECOND, _offset(change, zone)


def first_moment(local: datetime, zone: tzinfo) -> datetime:
    """When a local time comes first (UTC); if it does not exist, the moment right after the gap."""
    found = local.replace(tzinfo=zone).astimezone(UTC)
    if found.astimezone(zone).replace(tzinfo=None) == local:
        return found
    # Read with the offset after the gap it lies before the gap, and the reverse (PEP 495).
    before = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return _first_change(zone, before, found) or found


def _next(calendar: CronSim, local: datetime) -> datetime | None:
    """The calendar's next local time; None after 50 years without one."""
    looking = copy.copy(calendar)
    looking.dt = local.replace(microsecond=0, fold=0)
    return next(looking, None)


def _first_change(zone: tzinfo, start: datetime, end: datetime) -> datetime | None:
    """The first moment in (start, end] at which the offset is not that of `start`."""
    offset = _offset(start, zone)
    while start < end:
        step = min(start + _DAY, end)  # no zone changes twice in a day
        if _offset(step, zone) != offset:
            return _bisected(zone, start, step)
        start = step
    return None


def _bisected(zone: tzinfo, before: datetime, after: datetime) -> datetime:
    offset = _offset(before, zone)
    before = before.replace(microsecond=0)
    seconds = (after - before) // _SECOND + 1
    while seconds > 1:
        middle = seconds // 2
        if _offset(before + middle * _SECOND, zone) == offset:
            before += middle * _SECOND
            seconds -= middle
        else:
            seconds = middle
    return before + _SECOND


def _offset(moment: datetime, zone: tzinfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta(0)
