"""Plots of a run's attempts as paths of a picture, made on the server: a peak is never lost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from accumaudit.engine.findings import Finding, Verdict
from accumaudit.outputs.kinds import KINDS, Kind
from accumaudit.outputs.words import plural

if TYPE_CHECKING:
    from accumaudit.service.snapshot import Point

WIDTH: Final = 600
HEIGHT: Final = 120
MOST_POINTS: Final = 20_000
"""The newest attempts that are drawn."""
COLUMNS: Final = 300
"""Each shows the lowest and the highest value of its attempts."""
BANDS: Final = 12
"""Findings that are marked in one plot."""
STRIP: Final = 5
"""Height of the strip over a finding's reach."""
STROKE: Final = 7
"""Length of the stroke for a value that is none, or for a skipped attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a plot."""

    label: str
    path: str
    last: float | None
    """The newest known value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Where a finding lies: a strip from its first to its last attempt, a column at each that it names."""

    x: float
    width: float
    height: int
    severity: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One picture and what is said about it."""

    title: str
    lines: tuple[Line, ...]
    bands: tuple[Band, ...]
    launches: str
    """A path of upright lines where a later launch begins."""
    low: float
    high: float
    expected: float | None
    """The height of what is right."""
    expected_value: float | None
    nonfinite: str
    """A path of short strokes at the top; empty where all values are numbers."""
    skipped: str
    """A path of short strokes at the bottom: attempts that left the parameters as they were."""
    notes: tuple[str, ...]


def plots(points: Sequence[Point], findings: Sequence[Verdict]) -> list[Plot]:
    """The plots of one optimizer's attempts, at most MOST_POINTS: those of which anything is known."""
    bands = tuple(_bands(points, findings))
    drawn = (_plot(kind, points, bands) for kind in KINDS)
    return [plot for plot in drawn if plot is not None]


def _plot(kind: Kind, points: Sequence[Point], bands: tuple[Band, ...]) -> Plot | None:
    columns = {name: [_value(getattr(point, name)) for point in points] for name, _ in kind.fields}
    known = [value for values in columns.values() for value in values if value is not None]
    finite = [value for value in known if math.isfinite(value)]
    if not known:
        return None
    right = [] if kind.expected is None else [kind.expected]
    low, high = min(finite + right, default=0.0), max(finite + right, default=0.0)
    strange = sorted(
        {at for values in columns.values() for at, value in enumerate(values) if _is_strange(value)}
    )
    skips = [at for at, point in enumerate(points) if point.applied is False]
    notes = []
    if strange:
        notes.append(f"{plural(len(strange), 'value')} not finite (strokes at the top)")
    if skips:
        notes.append(f"{plural(len(skips), 'attempt')} skipped (strokes at the bottom)")
    return Plot(
        title=kind.title,
        lines=tuple(
            Line(
                label=label,
                path=_path(columns[name], low, high),
                last=next((value for value in reversed(columns[name]) if value is not None), None),
            )
            for name, label in kind.fields
            if any(value is not None for value in columns[name])
        ),
        bands=bands,
        launches=_strokes(_launches(points), len(points), 0, HEIGHT),
        low=low,
        high=high,
        expected=None if kind.expected is None else _height(kind.expected, low, high),
        expected_value=kind.expected,
        nonfinite=_strokes(strange, len(points), 0, STROKE),
        skipped=_strokes(skips, len(points), HEIGHT - STROKE, STROKE),
        notes=tuple(notes),
    )


def _value(value: float | None) -> float | None:
    return None if value is None else float(value)


def _is_strange(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)


def _x(at: float, count: int) -> float:
    return WIDTH / 2 if count == 1 else round(WIDTH * at / (count - 1), 1)


def _height(value: float, low: float, high: float) -> float:
    """From the top; the lowest and the highest value keep a little from the edges."""
    share = 0.5 if high == low else value / (high - low) - low / (high - low)
    return round(HEIGHT - 8 - share * (HEIGHT - 16), 1)


def _path(values: Sequence[float | None], low: float, high: float) -> str:
    """Strokes from known value to known value; what is not known is a gap."""
    parts, pen_down = [], False
    for at, value in _decimated(values):
        if value is None:
            pen_down = False
            continue
        parts.append(f"{'L' if pen_down else 'M'}{_x(at, len(values))} {_height(value, low, high)}")
        if not pen_down:
            parts.append("h0")  # a single value is a dot
        pen_down = True
    return "".join(parts)


def _decimated(values: Sequence[float | None]) -> Iterator[tuple[int, float | None]]:
    """The lowest and the highest of each column, in their order; all, where there are few."""
    size = max(1, math.ceil(len(values) / COLUMNS))
    for start in range(0, len(values), size):
        column = values[start : start + size]
        finite = [
            (value, at)
            for at, value in enumerate(column, start)
            if value is not None and math.isfinite(value)
        ]
        if not finite:
            yield start, None
            continue
        for value, at in sorted({min(finite), max(finite)}, key=lambda one: one[1]):
            yield at, value
        if len(finite) < len(column) and size == 1:
            yield start, None


def _strokes(places: Sequence[int], count: int, top: int, length: int) -> str:
    """Upright strokes, one a place that can be told from the one before."""
    return "".join(f"M{x} {top}v{length}" for x in sorted({_x(at, count) for at in places}))


def _launches(points: Sequence[Point]) -> list[int]:
    """Where a later launch begins."""
    return [at for at in range(1, len(points)) if points[at].launch != points[at - 1].launch]


def _bands(points: Sequence[Point], findings: Sequence[Verdict]) -> Iterator[Band]:
    """The strip and the columns of each finding, as far as they are drawn."""
    for verdict in findings[:BANDS]:
        assert verdict.finding is not None
        label = f"{verdict.code} {verdict.name}"
        reach = _reach(points, verdict.finding)
        if reach:
            yield _band(reach[0], reach[-1], len(points), STRIP, verdict.severity, label)
        named = {(example.launch, example.attempt_id) for example in verdict.finding.examples}
        for at, point in enumerate(points):
            if (point.launch, point.attempt_id) in named:
                yield _band(at, at, len(points), HEIGHT, verdict.severity, label)


def _reach(points: Sequence[Point], finding: Finding) -> list[int]:
    """The drawn attempts from the finding's first update to its last."""
    if finding.first_update is None or finding.last_update is None:
        return []
    return [
        at
        for at, point in enumerate(points)
        if point.update_id is not None and finding.first_update <= point.update_id <= finding.last_update
    ]


def _band(first: int, last: int, count: int, height: int, severity: str, label: str) -> Band:
    start = max(_x(first - 0.5, count), 0.0)
    end = min(_x(last + 0.5, count), float(WIDTH))
    width = max(round(end - start, 1), 2.0)
    return Band(x=start, width=width, height=height, severity=severity, label=label)
