"""Which schedule a log's rates follow: the declared one, or one that nothing else explains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from accumaudit.schedules import PROOF
from accumaudit.schedules.inversion import (
    UNKNOWN,
    Rates,
    has_them_without_a_loss,
    in_fall,
    in_rise,
    is_orderly,
    with_best_warm_up,
)
from accumaudit.schedules.shapes import SHAPES, WARM_UPS, WSD_CURVES, Numbers, Schedule

ENOUGH: Final = 3
"""The same, for a schedule that was declared."""

TELLING: Final = 0.25
"""Share of the rates in the fall that must tell a position where nothing was declared."""

PLATEAU: Final = 3
"""Equal rates that make a plateau or a floor."""

LARGEST_LOSS: Final = 0.1
"""Share of the updates by which a schedule may fall behind; more is another unit than updates."""

PEAKS: Final = 6
"""Lengths of a warm-up that are tried beyond its highest rate."""

STRETCHES: Final = 24
STRETCH: Final = 24
"""Numbers of stretches, and of rates in each, that the search looks at."""

EXACT: Final = 1e-8
"""Share of the rate below which what the print leaves open hides no step."""

TRIED: Final = 64
"""Rates at which a candidate is tried before all are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a log says of its schedule; None where it says nothing."""

    shape: str | None = None
    warmup: int | None = None
    updates: int | None = None
    decay: int | None = None
    peak: float | None = None
    minimum: float | None = None
    power: float | None = None
    warm_up: str | None = None
    """How the trainer counts the steps of its warm-up."""
    habit: int | None = None
    """1 where the rates are known to be those that were used."""

    @property
    def is_known(self) -> bool:
        """Shape and length are declared: a few rates show whether it is followed."""
        return self.shape in SHAPES and (self.updates is not None or self.shape == "inverse_sqrt")


@dataclass(frozen=True, slots=True)
class Fit:
    """A schedule, and where it stood at each rate; NaN where the rate does not tell."""

    schedule: Schedule
    positions: Numbers


@dataclass(frozen=True, slots=True)
class Parts:
    """A log's rates on the way up and on the way down.

    The highest are in neither where there is a rise: they may still belong to it.
    """

    rise: Rates
    fall: Rates
    top: float
    error: float
    """How far the highest may be off."""
    plateau: int
    """How many rates are the highest."""
    floor: float | None
    """The last rate, where it came several times."""
    moves: int
    """How many rates the fall has up to its floor."""
    moving: Rates
    """Of these all, or stretches from all over it."""


def recognise(found: Rates, declared: Declared, before: Schedule | None = None) -> Fit | None:
    """Find the one schedule that has all these rates at whole positions, in order.

    Args:
        before: the schedule of the launch that this one continues.
    """
    if len(found) < ENOUGH or (declared.shape is not None and declared.shape not in SHAPES):
        return None
    parts = _parts(found)
    if parts is None or (len(parts.fall) < PROOF and before is None and not declared.is_known):
        return None
    with np.errstate(all="ignore"):
        if before is not None:
            if fit := _goes_on(before, found):
                return fit
            declared = replace(declared, peak=declared.peak or before.peak)
        fits = [fit for curve in _curves(declared, parts) if (fit := _fit(curve, found, parts, declared))]
        return fits[0] if len({fit.schedule.curve for fit in fits}) == 1 else None


def _goes_on(before: Schedule, found: Rates) -> Fit | None:
    """The positions on the schedule of the launch before, from wherever it was taken up."""
    for ahead in (0, before.start + before.length):
        moved = replace(found, updates=found.updates + ahead)
        parts = _parts(moved)
        if parts is not None and (fit := _follows(before, moved, parts, ENOUGH, before.warm_up)):
            return fit
    return None


def _parts(found: Rates) -> Parts | None:
    """Part the rates at the highest; None where they go up and down again."""
    rates, errors = found.rates, found.errors
    first_top = int(np.argmax(rates))
    top = float(rates[first_top])
    if not 1e-30 < top < 1e30 or float(np.min(rates)) < 0:
        return None
    at_top = np.flatnonzero(rates >= top - errors)
    last_top = int(at_top[-1])
    steps = np.diff(rates)
    if np.any(steps[:first_top] < -errors[:first_top]) or np.any(steps[last_top:] > errors[last_top + 1 :]):
        return None
    if len(at_top) <= last_top - first_top:
        return None  # it came back to the highest
    fall = found.some(slice(last_top + (first_top > 0), None))
    same = int(np.argmax(rates[::-1] != rates[-1]))
    floor = float(rates[-1]) if same >= PLATEAU and rates[-1] < top else None
    moving = fall if floor is None else fall.some(fall.rates > floor + fall.errors)
    return Parts(
        rise=found.some(slice(0, first_top)),
        fall=fall,
        top=top,
        error=float(errors[first_top]),
        plateau=last_top - first_top + 1,
        floor=floor,
        moves=len(moving),
        moving=_thinned(moving),
    )


def _thinned(rates: Rates) -> Rates:
    """Stretches of rates that follow each other, so that their pace can still be seen."""
    apart = len(rates) // STRETCHES
    if apart <= STRETCH:
        return rates
    starts = np.arange(STRETCHES) * apart
    chosen = (starts[:, None] + np.arange(STRETCH)).ravel()
    return rates.some(np.append(chosen, len(rates) - 1))


def _curves(declared: Declared, parts: Parts) -> Iterable[tuple[str, str]]:
    """The shapes and curves that come into question."""
    if declared.shape == "wsd":
        return [("wsd", curve) for curve in WSD_CURVES]
    if declared.shape is not None:
        return [(declared.shape, declared.shape)]
    plain = [(shape, shape) for shape in ("linear", "cosine", "inverse_sqrt")]
    return plain + [("wsd", curve) for curve in WSD_CURVES] if parts.plateau >= PLATEAU else plain


def _fit(kind: tuple[str, str], found: Rates, parts: Parts, declared: Declared) -> Fit | None:
    """The best schedule of this curve that has all the rates."""
    need = ENOUGH if declared.is_known else PROOF
    fits = [
        fit
        for schedule in _candidates(kind, parts, declared)
        if not _guesses_its_end(schedule, parts, declared)
        and (fit := _follows(schedule, found, parts, need, declared.warm_up))
    ]
    # A declared length is preferred to others that fit as well.
    fits = [fit for fit in fits if fit.schedule.updates == declared.updates] or fits
    if not fits:
        return None
    best = min(fits, key=lambda fit: _doubts(fit, found, declared))
    agreed = all(_agree(fit, best) for fit in fits)
    return best if agreed and _proves_its_losses(best, found, parts, declared) else None


def _proves_its_losses(fit: Fit, found: Rates, parts: Parts, declared: Declared) -> bool:
    """In few digits a step that is lost looks like a schedule that is a little longer."""
    schedule = fit.schedule
    behind = (found.updates - fit.positions)[~np.isnan(fit.positions)]
    before = declared.warmup if schedule.shape != "wsd" else declared.decay
    is_declared = before == (schedule.start if schedule.shape != "wsd" else schedule.length)
    if not schedule.updates or np.ptp(behind) == 0 or (is_declared and schedule.updates == declared.updates):
        return True
    if parts.error < EXACT * parts.top:
        return True
    # The highest may as well be of a plateau.
    below = parts.fall.some(parts.fall.rates < parts.top - parts.error)
    end = declared.updates if schedule.updates == declared.updates else None
    peaks = {schedule.peak, parts.top, declared.peak or parts.top}
    return not any(
        has_them_without_a_loss(replace(schedule, peak=peak), _thinned(below), end) for peak in peaks
    )


def _guesses_its_end(schedule: Schedule, parts: Parts, declared: Declared) -> bool:
    """A line tells no minimum before it has come there."""
    return (
        schedule.curve == "linear"
        and schedule.minimum not in (0.0, parts.floor, declared.minimum)
        and schedule.updates != declared.updates
    )


def _agree(one: Fit, other: Fit) -> bool:
    """Whether both give the same positions; one step more or less may be the log's habit.

    Lines to different minima do, as long as neither was reached.
    """
    apart = (one.positions - other.positions)[~np.isnan(one.positions + other.positions)]
    return len(apart) == 0 or (float(np.ptp(apart)) <= 1 and float(np.max(np.abs(apart))) <= 1)


def _doubts(fit: Fit, found: Rates, declared: Declared) -> tuple[float, ...]:
    """What speaks against a schedule beside another that fits as well: the less, the better."""
    behind = found.updates - fit.positions
    first, last = float(np.nanmin(behind)), float(np.nanmax(behind))
    schedule = fit.schedule
    return (
        declared.habit is not None and first != declared.habit,
        schedule.start != (declared.warmup or 0) and schedule.warmup == 0,
        schedule.minimum > 0,
        last - first,
        list(WARM_UPS).index(schedule.warm_up),
        schedule.start != (declared.warmup or 0),
        first > 1,
        _digits(schedule.peak),
        first,
    )


def _digits(number: float) -> int:
    return len(f"{number:.12e}".partition("e")[0].rstrip("0"))


def _candidates(kind: tuple[str, str], parts: Parts, declared: Declared) -> Iterator[Schedule]:
    """Schedules that may have these rates, from what is declared and from how the rates move."""
    shape, curve = kind
    tried: set[Schedule] = set()
    for peak in _peaks(parts, declared):
        warmups = _warmups(parts, declared, peak)
        for minimum in _minima(parts, declared, peak):
            general = Schedule(shape=shape, curve=curve, peak=peak, minimum=minimum, power=_power(declared))
            for start, length in _falls(general, parts, declared, warmups):
                for warmup in warmups if shape == "wsd" else [start]:
                    one = replace(general, warmup=warmup, start=start, length=length)
                    if one not in tried and 0 <= warmup <= start:
                        tried.add(one)
                        yield one


def _power(declared: Declared) -> float:
    return declared.power if declared.power is not None and declared.power > 0 else 1.0


def _peaks(parts: Parts, declared: Declared) -> list[float]:
    """The declared peak, the highest rate, round numbers right above it, and where a straight line leads."""
    peaks = [declared.peak] if declared.peak else []
    exponent = int(np.floor(np.log10(parts.top)))
    for digits in range(1, 6):
        # By way of a decimal: 2e-4 is to be the number that a configuration holds.
        size = exponent - digits + 1
        peaks.append(float(f"{int(np.ceil(round(parts.top / 10.0**size, 6)))}e{size}"))
    peaks.append(parts.top)
    for pace in _paces(parts.rise):
        # A warm-up of whole steps ends at one of these.
        first = int(np.ceil(parts.top / pace - 1e-6))
        peaks += [_rounded(pace * length) for length in range(first, first + PEAKS)]
    if not len(parts.rise) and parts.plateau < PLATEAU:
        for pace in _paces(parts.fall):
            at_first = float(parts.fall.rates[0] + pace * parts.fall.updates[0])
            peaks += [_rounded(at_first), _rounded(at_first - pace)]
    return [peak for peak in dict.fromkeys(peaks) if parts.top - parts.error <= peak < 1e30]


def _paces(rates: Rates) -> list[float]:
    """The largest and the usual change of the rate in a step: skipped steps make it smaller."""
    if len(rates) < 2:
        return []
    moves = np.abs(np.diff(rates.rates)) / np.diff(rates.updates)
    paces = [float(np.max(moves)), float(np.median(moves))]
    return [pace for pace in dict.fromkeys(paces) if pace > 1e-9 * float(np.max(rates.rates))]


def _rounded(number: float) -> float:
    """Without the noise of floating point."""
    return float(f"{number:.12g}")


def _minima(parts: Parts, declared: Declared, peak: float) -> list[float]:
    if declared.minimum is not None:
        return [declared.minimum] if declared.minimum < peak else []
    lowest = float(np.min(parts.fall.rates + parts.fall.errors, initial=parts.top))
    minima = [0.0, *([parts.floor] if parts.floor else []), peak / 10, peak / 100]
    return [one for one in dict.fromkeys(minima) if one <= lowest]


def _warmups(parts: Parts, declared: Declared, peak: float) -> list[int]:
    """Lengths of the warm-up: the declared one, or what its slope tells."""
    if declared.warmup is not None:
        return [declared.warmup]
    lengths = [round(peak / pace) + more for pace in _paces(parts.rise) for more in (0, -1, 1)]
    return [length for length in dict.fromkeys(lengths) if length >= 0] or [0]


def _falls(
    general: Schedule, parts: Parts, declared: Declared, warmups: list[int]
) -> Iterator[tuple[int, int]]:
    """Where the fall may begin, and how long it may be: as declared, then as the rates move."""
    if declared.updates is not None:
        for warmup in warmups:
            length = declared.decay if general.shape == "wsd" else declared.updates - warmup
            if length and 0 < length <= declared.updates:
                yield declared.updates - length, length
    if general.curve == "inverse_sqrt":
        yield from ((warmup, warmup) for warmup in warmups if warmup > 0)
    if len(parts.moving) >= ENOUGH:
        yield from _falls_by_pace(general, parts.moving, declared.updates, warmups if len(parts.rise) else [])


def _falls_by_pace(
    general: Schedule, moving: Rates, updates: int | None, warmups: list[int]
) -> Iterator[tuple[int, int]]:
    """Where the fall begins if the rates go down a curve of each length at their pace."""
    progress = _progress(general, moving.rates)
    most = _most_lost(moving.updates)
    for length in _lengths(progress, moving.updates):
        starts = moving.updates - length * progress
        # A quick look first: the middle of a fall is seldom flat.
        middle = starts[len(starts) // 4 : 1 + 3 * len(starts) // 4]
        if general.shape != "wsd" and np.ptp(middle) > 2 * most:
            continue
        sharp = _is_sharp(general, progress, length, moving)
        if np.count_nonzero(sharp) < ENOUGH or np.ptp(starts[sharp]) > most:
            continue
        first = round(float(np.min(starts[sharp])))
        # Steps that were lost before the fall make it begin later than the warm-up ends.
        possible = {first, first - 1, first if updates is None else updates - length, *warmups}
        earliest = max(0.0, first - max(most, LARGEST_LOSS * float(moving.updates[-1])))
        if general.curve == "inverse_sqrt":
            yield length, length
        else:
            yield from ((start, length) for start in sorted(possible) if earliest <= start <= first)


def _progress(general: Schedule, rates: Numbers) -> Numbers:
    return replace(general, start=0, length=1).position_in_fall(rates)


def _lengths(progress: Numbers, updates: Numbers) -> list[int]:
    """Lengths of the fall by its pace, over short and long stretches: skipped steps slow single ones."""
    lengths: dict[int, None] = {}
    count = len(progress)
    for apart in sorted({1, max(1, count // 10), max(1, count // 3), count - 1}):
        moved = progress[apart:] - progress[:-apart]
        pace = float(np.median(moved / (updates[apart:] - updates[:-apart])))
        if 1e-9 < pace <= 1:
            nearest = round(1 / pace)
            lengths |= dict.fromkeys((nearest, nearest - 1, nearest + 1))
    return [length for length in lengths if length > 0]


def _is_sharp(general: Schedule, progress: Numbers, length: int, moving: Rates) -> Numbers:
    """Where the rate moves by more in a step than the print leaves open."""
    schedule = replace(general, start=0, length=length)
    positions = progress * length
    step = np.abs(schedule.falling(np.maximum(positions - 1, 0)) - schedule.falling(positions))
    return np.asarray(step > 2 * moving.errors)


def _most_lost(updates: Numbers) -> float:
    return max(2.0, LARGEST_LOSS * float(updates[-1] - updates[0]))


def _follows(schedule: Schedule, found: Rates, parts: Parts, need: int, warm_up: str | None) -> Fit | None:
    """The positions of all rates, where the schedule has every one of them, in order."""
    tried = parts.fall.some(slice(None, None, max(1, len(parts.fall) // TRIED)))
    if not np.all(in_fall(schedule, tried).agrees):
        return None
    fall = in_fall(schedule, parts.fall)
    told = ~np.isnan(fall.positions)
    behind = (parts.fall.updates - fall.positions)[told]
    if not np.all(fall.agrees) or not is_orderly(behind):
        return None
    positions = np.full(len(found), UNKNOWN)
    positions[len(found) - len(parts.fall) :] = fall.positions
    if len(parts.rise):
        begins_behind = float(behind[0]) if len(behind) else None
        risen = with_best_warm_up(schedule, parts.rise, begins_behind, [warm_up] if warm_up else [*WARM_UPS])
        if risen is None:
            return None
        schedule = risen
        positions[: len(parts.rise)] = in_rise(schedule, parts.rise).positions
    all_behind = (found.updates - positions)[~np.isnan(positions)]
    proved = positions if need == ENOUGH else fall.positions
    if len(np.unique(proved[~np.isnan(proved)])) < need or np.ptp(all_behind) > _most_lost(found.updates):
        return None
    if need == PROOF and np.count_nonzero(told) < TELLING * parts.moves:
        return None
    return Fit(schedule, positions)
