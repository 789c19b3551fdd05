"""Ticks: the moments that a schedule's rule names, and which of them are due. Pure.

A tick is a moment by the rule, never the moment at which somebody looked: the same tick has the
same time in every process. `now` comes in, from the database.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from researchcopilot.core.cron import Cron

# So many ticks of a schedule are looked at one by one; older ones are told of in one row.
MOST = 100
_MANY = 2 * MOST
_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Every:
    """A rule that counts real seconds from an anchor, which is its first tick."""

    seconds: float
    anchor: datetime

    def after(self, moment: datetime) -> datetime | None:
        """The first tick later than `moment`."""
        if moment < self.anchor:
            return self.anchor
        step = timedelta(seconds=self.seconds)
        return self.anchor + ((moment - self.anchor) // step + 1) * step


@dataclass(frozen=True, slots=True)
class Timing:
    """A rule within its bounds; both bounds may be ticks themselves."""

    rule: Cron | Every
    starts_at: datetime | None = None
    ends_at: datetime | None = None

    def after(self, moment: datetime) -> datetime | None:
        """The first tick later than `moment`; None if the schedule is over then."""
        if self.starts_at is not None and self.starts_at > moment:
            moment = self.starts_at - _INSTANT
        tick = self.rule.after(moment)
        if tick is None or (self.ends_at is not None and tick > self.ends_at):
            return None
        return tick

    def ticks(self, first: datetime | None) -> Iterator[datetime]:
        """That tick and those after it."""
        while first is not None:
            yield first
            first = self.after(first)


@dataclass(frozen=True, slots=True)
class DueTicks:
    """What is due: at most MOST ticks, the newest ones, oldest first. `older`: there were more,
    from this one on. `following`: the first that is not due."""

    ticks: Sequence[datetime]
    older: datetime | None
    following: datetime | None


def due(timing: Timing, first: datetime, now: datetime) -> DueTicks:
    """Every tick from `first` (a tick that is due) up to `now`, however long that is."""
    ticks, following = _take(timing, first, now)
    if len(ticks) > _MANY:
        ticks, following = _newest(timing, first, now, ticks[MOST] - first)
    return DueTicks(ticks[-MOST:], first if len(ticks) > MOST else None, following)


def _take(
    timing: Timing, first: datetime | None, now: datetime
) -> tuple[list[datetime], datetime | None]:
    """Ticks up to `now`, at most one more than _MANY; and the one after them."""
    found: list[datetime] = []
    for tick in timing.ticks(first):
        if tick > now or len(found) > _MANY:
            return found, tick
        found.append(tick)
    return found, None


def _newest(
    timing: Timing, first: datetime, now: datetime, span: timedelta
) -> tuple[list[datetime], datetime | None]:
    """The newest ones, more than MOST but not more than _MANY, and the one after them. Looked for
    from the end, as far back as MOST of them took (`span`) and half as much: a schedule of seconds
    that nobody looked at for a month has millions. Where they are not even, by halving."""
    low, high, back = first, now, span * 1.5  # too many are due after low, too few after high
    guess = max(low, now - back)
    while True:
        found, following = _take(timing, timing.after(guess), now)
        if MOST < len(found) <= _MANY:
            return found, following
        if len(found) > MOST:
            low = guess
        else:
            high, back = guess, min(back * 2, now - first)
        guess = max(low + (high - low) / 2, now - back)
