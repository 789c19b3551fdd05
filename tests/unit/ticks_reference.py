"""When a cron line fires around a change of local time, found the slow way: minute by minute.

Independent of the product: it shares no code with `core/cron.py`, knows nothing of cronsim, and
asks the zone only for the local time of a moment. A `Line` is sets of numbers, from which its text
is written, so that nobody's parser is in it either.
"""

import random
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
FARTHEST = timedelta(hours=15)  # no zone is farther from UTC
START, END = datetime(2000, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Line:
    """`weekdays` count from Sunday = 0; None is every day."""

    minutes: frozenset[int]
    hours: frozenset[int]
    weekdays: frozenset[int] | None = None

    def __str__(self) -> str:
        return (
            f"{_field(self.minutes, 60)} {_field(self.hours, 24)} * * "
            f"{'*' if self.weekdays is None else _field(self.weekdays, 7)}"
        )

    @property
    def every_hour(self) -> bool:
        return len(self.hours) == 24

    def on(self, day: date) -> bool:
        return self.weekdays is None or (day.weekday() + 1) % 7 in self.weekdays

    def fits(self, local: datetime) -> bool:
        return local.minute in self.minutes and local.hour in self.hours and self.on(local.date())


def _field(numbers: frozenset[int], all_of_them: int) -> str:
    if len(numbers) == all_of_them and numbers != frozenset({0}):
        return "*"
    return ",".join(map(str, sorted(numbers)))


def line(minutes: str, hours: str, weekdays: str = "*") -> Line:
    """From ranges with steps: `0-59/15`, `2`, `*`."""
    return Line(
        _numbers(minutes, 60),
        _numbers(hours, 24),
        None if weekdays == "*" else _numbers(weekdays, 7),
    )


def _numbers(text: str, all_of_them: int) -> frozenset[int]:
    if text == "*":
        return frozenset(range(all_of_them))
    found: set[int] = set()
    for part in text.split(","):
        ends, _, step = part.partition("/")
        low, _, high = ends.partition("-")
        found |= set(range(int(low), int(high or low) + 1, int(step or 1)))
    return frozenset(found)


def some_line(chance: random.Random) -> Line:
    """Any line that is likely to meet a change."""
    minutes = frozenset(chance.sample(range(60), chance.choice((1, 1, 2, 4))))
    hours = frozenset(
        range(24)
        if chance.random() < 0.3
        else chance.sample((0, 1, 2, 3, 4, 12, 21, 22, 23), chance.randint(1, 4))
    )
    weekdays = None if chance.random() < 0.6 else frozenset(chance.sample(range(7), 2))
    return Line(minutes, hours, weekdays)


@dataclass(frozen=True)
class Change:
    """A day (its start in UTC) in which a zone's offset changes."""

    day: datetime
    before: timedelta
    after: timedelta


def changes(name: str) -> list[Change]:
    """All of a zone's, 2000 to 2040."""
    zone = zoneinfo.ZoneInfo(name)
    found = []
    moment, before = START, START.astimezone(zone).utcoffset()
    while moment < END:
        after = (moment + DAY).astimezone(zone).utcoffset()
        assert before is not None and after is not None
        if after != before:
            found.append(Change(moment, before, after))
        moment, before = moment + DAY, after
    return found


class Window:
    """Some days around a change, each minute of them with its local time."""

    def __init__(self, name: str, day: datetime, days: int = 1) -> None:
        zone = zoneinfo.ZoneInfo(name)
        self.start, self.end = day - days * DAY, day + (days + 1) * DAY
        self.minutes: list[tuple[datetime, datetime]] = []  # (moment, local)
        self.first: dict[datetime, datetime] = {}  # local → its first moment
        moment = self.start - 2 * DAY
        while moment < self.end + 2 * DAY:
            local = moment.astimezone(zone).replace(tzinfo=None, fold=0)
            self.minutes.append((moment, local))
            self.first.setdefault(local, moment)
            moment += MINUTE
        self.locals = list(self._locals())

    def ticks(self, wanted: Line) -> list[datetime]:
        """Every tick in the window, both ends included, in order."""
        if wanted.every_hour:
            found = {moment for moment, local in self.minutes if wanted.fits(local)}
        else:
            found = {self._once(local) for local in self.locals if wanted.fits(local)}
        return sorted(tick for tick in found if self.start <= tick <= self.end)

    def _locals(self) -> Iterator[datetime]:
        """Each minute of a calendar that knows no changes, over the days of the window."""
        local = self.start.replace(tzinfo=None) - FARTHEST
        while local < self.end.replace(tzinfo=None) + FARTHEST:
            yield local
            local += MINUTE

    def _once(self, local: datetime) -> datetime:
        if local in self.first:
            return self.first[local]
        for (_, before), (moment, after) in zip(self.minutes, self.minutes[1:], strict=False):
            if before < local < after:
                return moment
        raise AssertionError(f"{local} lies in no gap of the window")
