"""How exactly a log tells its numbers, by how many digits it prints."""

from __future__ import annotations

from typing import Final

import numpy as np

from accumaudit.schedules.shapes import Numbers

LOOKED_AT: Final = 2_000
"""Numbers whose digits are counted."""

DOUBLE: Final = 15
"""Digits from which a number was not rounded in print."""


def half_of_last_digit(numbers: Numbers) -> Numbers:
    """How far each number may be off what it was before it was printed.

    A log rounds either to a number of digits or to a number of decimals. The longest number tells both, and
    the coarser of the two errors is right for either: digits alone would be too fine for small numbers
    that were cut at a decimal, decimals alone for large ones that were cut after so many digits.
    """
    step = max(1, len(numbers) // LOOKED_AT)
    looked_at = numbers[::step]
    digits, decimals = 1, -300
    for number in looked_at.tolist():
        mantissa, _, exponent = f"{abs(number)!r}".partition("e")
        whole, _, fraction = mantissa.partition(".")
        fraction = fraction.rstrip("0")
        digits = max(digits, len((whole + fraction).strip("0")))
        decimals = max(decimals, len(fraction) - int(exponent or 0) - (0 if fraction else _zeros(whole)))
    sizes = np.abs(numbers)
    with np.errstate(over="ignore"):
        single = looked_at.astype(np.float32).astype(np.float64)
    if digits > 9 and np.array_equal(looked_at, single):
        return np.asarray(sizes * 2.0**-24)
    if digits >= DOUBLE:
        return np.asarray(sizes * 2.0**-52)
    with np.errstate(divide="ignore"):
        magnitude = np.where(sizes > 0, np.floor(np.log10(sizes)), -300.0)
    return np.maximum(0.5 * 10.0 ** (magnitude - digits + 1), 0.5 * 10.0**-decimals)


def _zeros(whole: str) -> int:
    """Digits before the point that may be no digits at all: 1200 has two."""
    return len(whole) - len(whole.rstrip("0"))
