"""Curves with fewer points, for pages with many: the lowest and the highest of each stretch are kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from accumaudit.postmortem.model import Curve, History

POINTS: Final = 120_000
"""Points on a page, which keep it below 8 MB with the script that draws them."""


def thinned(histories: Sequence[History]) -> list[History]:
    """The histories of a page with no more than POINTS points in all, about as many in each curve."""
    sizes = sorted(len(curve.x) for history in histories for curve in history.curves)
    room, most = POINTS, math.inf
    for place, size in enumerate(sizes):
        share = room / (len(sizes) - place)
        if size > share:
            most = max(share, 4)
            break
        room -= size
    return [
        replace(history, curves=tuple(_thinned(curve, most) for curve in history.curves))
        for history in histories
    ]


def _thinned(curve: Curve, most: float) -> Curve:
    if len(curve.x) <= most:
        return curve
    points = list(_peaks(curve, math.ceil(2 * len(curve.x) / most)))
    return replace(curve, x=tuple(x for x, _ in points), y=tuple(y for _, y in points))


def _peaks(curve: Curve, size: int) -> Iterator[tuple[float, float | None]]:
    """The lowest and the highest of each stretch in their order; a gap where nothing is known."""
    for start in range(0, len(curve.x), size):
        known = [
            (value, at)
            for at, value in enumerate(curve.y[start : start + size], start)
            if value is not None and math.isfinite(value)
        ]
        if not known:
            yield curve.x[start], None
            continue
        for value, at in sorted({min(known), max(known)}, key=lambda one: one[1]):
            yield curve.x[at], value
