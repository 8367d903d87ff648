"""The charts of a page: what each shows, what is said of it, and where it can be looked at closely."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from accumaudit.outputs.kinds import KINDS
from accumaudit.outputs.postmortem.figures import (
    STYLES,
    TITLE,
    Figure,
    Line,
    Mark,
    Panel,
    events,
    extent,
    figure,
    is_logarithmic,
    panels,
)
from accumaudit.outputs.words import number, plural
from accumaudit.postmortem.model import Curve
from accumaudit.postmortem.story import at, named

if TYPE_CHECKING:
    from accumaudit.comparison import Comparison
    from accumaudit.postmortem.model import History, Moment, PostMortem, Suspect

BEFORE: Final = 100
AFTER: Final = 200
"""Updates before and after a mark, where it is looked at closely."""

NAMED: Final = 3
"""Marks of one kind that the key tells one by one; more are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart."""

    title: str
    keys: tuple[tuple[str, str], ...]
    """The role of a line, which is its style, and what it shows."""
    alt: str
    """What it shows, for who does not see it."""
    figure: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The charts over one axis."""

    title: str
    charts: tuple[Chart, ...]
    marks: tuple[tuple[str, str], ...]
    """The role of a mark, and what it says."""
    views: tuple[tuple[str, float, float], ...]
    """What a view is called, and from where to where it goes."""
    constant: tuple[str, ...]
    """What never changes, which is not drawn."""
    numbers: tuple[tuple[str, ...], ...]
    """The curves in numbers, a row each."""


ROUNDING: Final = 1e-6
"""By which share a value may differ from another and be the same: sums are rounded."""

NUMBER_HEADS: Final = ("Curve", "First", "Lowest", "Highest", "Last", "Not finite")


def of_post_mortem(telling: PostMortem, histories: Sequence[History]) -> list[Group]:
    """A group for each optimizer; the histories may have fewer points than the telling's own."""
    return [_group(telling, history) for history in histories if history.curves]


def _group(telling: PostMortem, history: History) -> Group:
    moments = list(_moments(telling, history))
    launches = [Mark(x=x, label=text, role="launch") for x, text in history.launches]
    marks = [*launches, *moments]
    whole = extent(history.curves)
    strip = events(history, marks, whole)
    return Group(
        title=history.title,
        charts=_stacked(
            [
                *(() if strip is None else (_events(strip, history),)),
                *_charts(panels(history), marks, history.axis, whole),
            ]
        ),
        marks=tuple(_keys(moments, launches)),
        views=_views(moments, whole),
        constant=_constants(panels(history)),
        numbers=tuple(_all_numbers(panels(history), history.axis)),
    )


def of_comparison(comparison: Comparison) -> list[Group]:
    """The mean losses over the axis that both are aligned on, and both runs' own updates, by optimizer."""
    groups = []
    losses = _losses(comparison)
    if losses is not None:
        groups.append(_group_of_two("", [losses], comparison.losses_axis, ()))
    for one, other in zip(*comparison.histories, strict=False):
        shown = list(_both(comparison, one, other))
        if shown:
            groups.append(_group_of_two(one.title, shown, one.axis, tuple(_difference(comparison, one))))
    return groups


def _group_of_two(title: str, shown: Sequence[Panel], axis: str, marks: Sequence[Mark]) -> Group:
    whole = extent(line.curve for panel in shown for line in panel.lines)
    return Group(
        title=title,
        charts=_stacked(list(_charts(shown, marks, axis, whole))),
        marks=tuple((mark.role, mark.label) for mark in marks),
        views=_views(marks, whole),
        constant=_constants(shown),
        numbers=tuple(_all_numbers(shown, axis)),
    )


def _difference(comparison: Comparison, history: History) -> Iterator[Mark]:
    """Where the first difference lies in the history of the first run."""
    first = comparison.first
    moment = None if first is None else first.moments[0]
    x = None if moment is None else history.place(moment)
    if x is not None and first is not None:
        yield Mark(x=x, label=f"first difference: {first.where}", role="fault")


def _charts(
    shown: Sequence[Panel], marks: Sequence[Mark], axis: str, whole: tuple[float, float]
) -> Iterator[Chart]:
    return (_chart(panel, marks, axis, whole) for panel in shown if _constant(panel) is None)


def _constants(shown: Sequence[Panel]) -> tuple[str, ...]:
    return tuple(text for panel in shown if (text := _constant(panel)) is not None)


def _all_numbers(shown: Sequence[Panel], axis: str) -> Iterator[tuple[str, ...]]:
    for panel in shown:
        for line in panel.lines:
            yield _numbers(line.curve, f"{panel.title}: {line.label}", axis)


def _constant(panel: Panel) -> str | None:
    """What a panel says whose lines are level and lie on each other, or on what is right."""
    if any(line.curve.nonfinite for line in panel.lines):
        return None
    values = {value for line in panel.lines for value, _ in _known(line.curve)}
    values |= set() if panel.expected is None else {panel.expected}
    if not values:
        return None
    low, high = min(values), max(values)
    if high - low > ROUNDING * max(abs(low), abs(high)):
        return None
    return f"{panel.title} {number(high if panel.expected is None else panel.expected)}"


def _losses(comparison: Comparison) -> Panel | None:
    """The mean loss of both over stretches of the axis, each at its middle."""
    xs = tuple((row.start + row.end) / 2 for row in comparison.losses)
    if len(xs) < 2:
        return None
    lines = tuple(
        Line(
            curve=Curve(
                name="loss", label="loss", x=xs, y=tuple(row.losses[at] for row in comparison.losses)
            ),
            label=side.name,
            colour=colour,
            dash=dash,
        )
        for at, (side, (colour, dash)) in enumerate(zip(comparison.sides, STYLES, strict=True))
    )
    return Panel(title=f"Mean loss by {comparison.losses_axis}", lines=lines)


def _both(comparison: Comparison, one: History, other: History) -> Iterator[Panel]:
    """The first field of each kind that both or one of the runs know."""
    names = [side.name for side in comparison.sides]
    for kind in KINDS:
        name = next((field for field, _ in kind.fields if one.curve(field) or other.curve(field)), None)
        if name is None:
            continue
        curves = [history.curve(name) for history in (one, other)]
        lines = [
            Line(curve=curve, label=label, colour=colour, dash=dash)
            for curve, label, (colour, dash) in zip(curves, names, STYLES, strict=True)
            if curve is not None
        ]
        title = kind.title if len(kind.fields) == 1 else f"{kind.title}, {dict(kind.fields)[name]}"
        yield Panel(title=title, lines=tuple(lines), expected=kind.expected)


def _moments(telling: PostMortem, history: History) -> Iterator[Mark]:
    """What the page speaks of, at its place in this history."""
    run, told = telling.run, set()

    def mark(moment: Moment | None, role: str, label: str) -> Iterator[Mark]:
        if moment is not None and moment not in told and (x := history.place(moment)) is not None:
            told.add(moment)
            yield Mark(x=x, label=f"{label}: {at(moment, run)}", role=role)

    def suspect(one: Suspect | None, role: str, label: str) -> Iterator[Mark]:
        if one is not None:
            yield from mark(one.first, role, f"{label}, {named(one)}")

    if telling.first_wrong is not None and telling.first_wrong.role == "cause":
        yield from suspect(telling.first_wrong, "fault", "first fault")
    yield from suspect(telling.onset, "onset", "first symptom")
    yield from suspect(next(iter(telling.suspects), None), "suspect", "strongest suspect")
    if telling.loss is not None and telling.outcome == "rose":
        yield from mark(telling.loss.steepest_at, "onset", "steepest rise of the loss")


def _chart(panel: Panel, marks: Sequence[Mark], axis: str, whole: tuple[float, float]) -> Chart:
    keys = [(line.colour, line.label) for line in panel.lines]
    if panel.expected is not None:
        keys.append(("expected", f"right: {number(panel.expected)}"))
    told = "; ".join(f"{line.label} {_told(line.curve)}" for line in panel.lines)
    scale = ", in powers of ten" if is_logarithmic(panel) else ""
    return Chart(
        title=panel.title + scale,
        keys=tuple(keys),
        alt=f"{panel.title} by {axis}: {told}",
        figure=figure([panel], marks, axis, whole),
    )


def _stacked(charts: Sequence[Chart]) -> tuple[Chart, ...]:
    """The charts one above the other, the lowest of which says what their axis counts."""
    for chart in charts[:-1]:
        layout = chart.figure["layout"]
        layout["height"] -= TITLE
        layout["margin"]["b"] -= TITLE
        del layout["xaxis"]["title"]
    return tuple(charts)


def _events(strip: Figure, history: History) -> Chart:
    parts = []
    if history.checkpoints:
        parts.append(plural(len(history.checkpoints), "saved state"))
    if history.skipped:
        parts.append(plural(len(history.skipped), "skipped attempt"))
    return Chart(
        title="Events",
        keys=(),
        alt=f"Events by {history.axis}: {', '.join(parts)}",
        figure=strip,
    )


def _keys(moments: Sequence[Mark], launches: Sequence[Mark]) -> Iterator[tuple[str, str]]:
    yield from ((mark.role, mark.label) for mark in moments)
    if len(launches) <= NAMED:
        yield from ((mark.role, mark.label) for mark in launches)
    else:
        yield "launch", f"{plural(len(launches), 'later launch')}es"


def _views(moments: Sequence[Mark], whole: tuple[float, float]) -> tuple[tuple[str, float, float], ...]:
    """The whole run, and the surroundings of each mark that are smaller than it."""
    close = []
    for mark in moments:
        low, high = max(mark.x - BEFORE, whole[0]), min(mark.x + AFTER, whole[1])
        if high - low < 0.9 * (whole[1] - whole[0]):
            close.append((f"Around the {mark.label.partition(',')[0].partition(':')[0]}", low, high))
    return (("Whole run", *whole), *close) if close else ()


def _known(curve: Curve) -> list[tuple[float, float]]:
    """Each value and its place."""
    return [
        (value, x)
        for x, value in zip(curve.x, curve.y, strict=True)
        if value is not None and math.isfinite(value)
    ]


def _told(curve: Curve) -> str:
    known = _known(curve)
    if not known:
        return "never finite"
    text = (
        f"first {number(known[0][0])}, lowest {number(min(known)[0])}, "
        f"highest {number(max(known)[0])}, last {number(known[-1][0])}"
    )
    return f"{text}, not finite {len(curve.nonfinite)} times" if curve.nonfinite else text


def _numbers(curve: Curve, name: str, axis: str) -> tuple[str, ...]:
    known = _known(curve)
    strange = f"{len(curve.nonfinite):,}"
    if not known:
        return name, "-", "-", "-", "-", strange
    low, high = min(known), max(known, key=lambda found: (found[0], -found[1]))

    def placed(found: tuple[float, float]) -> str:
        return f"{number(found[0])} at {axis} {found[1]:,.0f}"

    if low[0] == high[0]:
        return name, *([number(low[0])] * 4), strange
    return name, number(known[0][0]), placed(low), placed(high), number(known[-1][0]), strange
