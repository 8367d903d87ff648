"""From rates back to positions: where a known schedule stood when a log wrote a rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from accumaudit.schedules.precision import half_of_last_digit
from accumaudit.schedules.shapes import Numbers, Schedule

Flags = npt.NDArray[np.bool_]

ROUNDING: Final = 1e-11
"""What a schedule's own arithmetic may be off, as a share of the peak: some multiply step by step."""

UNKNOWN: Final = np.nan

PACES: Final = 60
"""Times that the range of paces is cut by a third."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of one log, in the order of its attempts."""

    attempts: Numbers
    updates: Numbers
    """Attempts without those known to be skipped; the attempts themselves where none are known."""
    rates: Numbers
    errors: Numbers
    """How far each may be off, by the digits that are printed."""

    @classmethod
    def of(cls, attempts: Numbers, updates: Numbers, rates: Numbers) -> Rates:
        """Take the rates, and how exactly they are printed."""
        return cls(attempts, updates, rates, half_of_last_digit(rates))

    def some(self, chosen: Flags | npt.NDArray[np.intp] | slice) -> Rates:
        """Some of them."""
        return Rates(self.attempts[chosen], self.updates[chosen], self.rates[chosen], self.errors[chosen])

    def __len__(self) -> int:
        return len(self.rates)


@dataclass(frozen=True, slots=True)
class Located:
    """Rates on a schedule."""

    positions: Numbers
    """NaN where the rate does not tell: it is flat there, or printed too coarsely."""
    agrees: Flags
    """The schedule has this rate somewhere, at a whole position."""


def in_fall(schedule: Schedule, found: Rates) -> Located:
    """The positions of rates in the fall of a schedule."""
    last = schedule.updates if schedule.updates is not None else np.inf
    near = np.rint(schedule.position_in_fall(found.rates))
    # Before its start there is a warm-up or a plateau, after its end a floor: neither tells.
    first = schedule.start + (schedule.shape == "wsd")
    located = _nearest(schedule.falling, near, found, schedule.peak, first, last)
    at_end = located.positions >= last
    # No schedule is ahead of the updates, however coarse the print.
    earliest = schedule.position_in_fall(found.rates + _slack(found, schedule.peak))
    agrees = located.agrees & (earliest <= found.updates + 0.5)
    if schedule.shape == "wsd":
        # The last rate of a plateau with which the log begins.
        agrees |= np.abs(found.rates - schedule.peak) <= _slack(found, schedule.peak)
    return Located(np.where(at_end, UNKNOWN, located.positions), agrees)


def in_rise(schedule: Schedule, found: Rates) -> Located:
    """The positions of rates in its warm-up."""
    near = np.rint(schedule.position_in_rise(found.rates))
    return _nearest(schedule.rising, near, found, schedule.peak, 0, schedule.warmup)


def with_best_warm_up(
    schedule: Schedule, rise: Rates, fall_begins_behind: float | None, names: Iterable[str]
) -> Schedule | None:
    """The schedule with the way of counting the warm-up that makes the fewest steps seem lost.

    Args:
        rise: the rates of the warm-up.
        fall_begins_behind: by how many steps the schedule is behind at the first rate of the fall.
        names: the ways.
    """
    if schedule.warmup < 1:
        return None
    best: tuple[float, Schedule] | None = None
    for name in names:
        candidate = replace(schedule, warm_up=name)
        located = in_rise(candidate, rise)
        behind = (rise.updates - located.positions)[~np.isnan(located.positions)]
        if not np.all(located.agrees) or not is_orderly(behind):
            continue
        growth = behind[-1] - behind[0] if len(behind) else 0.0
        if fall_begins_behind is not None and len(behind):
            growth = fall_begins_behind - behind[0]
            if behind[-1] > fall_begins_behind:
                continue
        if best is None or growth < best[0]:
            best = (growth, candidate)
    return best[1] if best else None


def has_them_without_a_loss(schedule: Schedule, fall: Rates, end: int | None) -> bool:
    """Whether the same fall has all these rates with another start and length, and no step is lost.

    Each rate leaves room for the progress, and the progress is to be a straight line over the updates.

    Args:
        end: where the fall is known to end.
    """
    slack = _slack(fall, schedule.peak)
    most, least = (
        (schedule.position_in_fall(rates) - schedule.start) / schedule.length
        for rates in (fall.rates - slack, fall.rates + slack)
    )
    # It stays at the peak before the fall, and at the minimum behind it.
    least[fall.rates + slack >= schedule.peak] = -np.inf
    most[fall.rates - slack <= schedule.minimum] = np.inf
    updates = fall.updates
    if end is not None:
        # A log that writes the rate that was used has the last one a step later.
        updates = np.append(updates, (end, end + 1))
        least, most = np.append(least, (-np.inf, 1)), np.append(most, (1, np.inf))
    low, high = 0.5 / schedule.length, 2 / schedule.length

    def room(pace: float) -> float:
        return float(np.min(most - pace * updates) - np.max(least - pace * updates))

    for _ in range(PACES):
        third = (high - low) / 3
        low, high = (low + third, high) if room(low + third) < room(high - third) else (low, high - third)
    return room(low) >= -ROUNDING


def is_orderly(behind: Numbers) -> bool:
    """Whether a schedule is never ahead of the updates, and only ever falls further behind."""
    return bool(np.all(behind >= 0) and np.all(np.diff(behind) >= 0))


def _slack(found: Rates, peak: float) -> Numbers:
    return found.errors * (1 + 1e-6) + ROUNDING * peak


def _nearest(
    rate: Callable[[Numbers], Numbers],
    near: Numbers,
    found: Rates,
    peak: float,
    first: float,
    last: float,
) -> Located:
    """Of three whole positions around each the one that has the rate, where it is the only one."""
    slack = _slack(found, peak)
    near = np.clip(near, first, last)
    hits = np.zeros(len(found), dtype=np.int64)
    positions = np.full(len(found), UNKNOWN)
    for offset in (-1, 0, 1):
        candidates = near + offset
        possible = (candidates >= first) & (candidates <= last)
        hit = possible & (np.abs(rate(np.clip(candidates, first, last)) - found.rates) <= slack)
        hits += hit
        positions = np.where(hit, candidates, positions)
    before, here, after = (rate(np.clip(near + offset, first, last)) for offset in (-1, 0, 1))
    step = np.maximum(np.abs(after - here), np.abs(here - before))
    # What the print leaves open must be less than half a step.
    tells = (hits == 1) & (2 * slack < step)
    return Located(np.where(tells, positions, UNKNOWN), hits > 0)
