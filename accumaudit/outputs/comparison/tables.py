"""The tables of a comparison: heads and rows of texts, which each output for people sets in its way."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from accumaudit.comparison.values import both, count
from accumaudit.outputs.words import number, plural

if TYPE_CHECKING:
    from accumaudit.comparison.model import Comparison, Difference, FieldResult, Side, Spread


ROWS: Final = 60
"""Rows of a table, at most; of more fields than that those that differ are shown."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table under its title."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def side(one: Side) -> str:
    """What a run is, in a line."""
    noun = "update" if one.format == "ledger" else "step"
    parts = [plural(one.updates, noun)]
    if one.attempts > one.updates:
        parts.append(f"{plural(one.attempts - one.updates, 'attempt')} skipped")
    if one.launches > 1:
        parts.append(plural(one.launches, "launch").replace("launchs", "launches"))
    if one.format == "ledger":
        parts.append(plural(one.world_size or one.ranks, "rank"))
    if one.micro_steps is not None:
        parts.append(f"{plural(one.micro_steps, 'micro-step')} to an update")
    if one.tokens is not None:
        parts.append(f"{number(one.tokens)} valid tokens on average")
    return ", ".join(parts)


def aligned(comparison: Comparison) -> str:
    """How the two stand beside each other, in a sentence."""
    places = plural(comparison.places, "place")
    return f"Aligned by {comparison.by}, {places}, tolerance {comparison.tolerance:g}: {comparison.why}."


def tables(comparison: Comparison) -> Iterator[Table]:
    """All that have rows, in the order in which they are read."""
    for table in (
        _differences(comparison),
        _near(comparison),
        _fields(comparison),
        _summary(comparison),
        _losses(comparison),
    ):
        if table.rows:
            yield table


def _differences(comparison: Comparison) -> Table:
    first = () if comparison.first is None else (comparison.first,)
    found = (*first, *comparison.beside, *comparison.later)
    return Table(
        "What differs first in each field",
        ("field", "where", *_names(comparison), "apart"),
        tuple(_difference(one) for one in found[:ROWS]),
    )


def _difference(one: Difference) -> tuple[str, ...]:
    apart = "" if one.relative is None or not math.isfinite(one.relative) else number(one.relative)
    return one.label, one.where, *both(*one.values), apart


def _near(comparison: Comparison) -> Table:
    title = "The places around it; where the two are not alike, what each tells"
    heads = (comparison.axis, *comparison.near_heads)
    rows = (
        (count(row.at), *(a if a == b else f"{a} | {b}" for a, b in row.cells)) for row in comparison.near
    )
    return Table(title, heads, tuple(rows))


def _fields(comparison: Comparison) -> Table:
    several = len({one.optimizer for one in comparison.fields}) > 1
    differing = [one for one in comparison.fields if one.differing]
    shown = comparison.fields if len(comparison.fields) <= ROWS else differing[:ROWS]
    return Table(
        "What was compared",
        ("field", "places", "differ", "largest difference"),
        tuple(_field(one, several=several) for one in shown),
    )


def _field(one: FieldResult, *, several: bool) -> tuple[str, ...]:
    label = f"{one.label}, optimizer {one.optimizer}" if several else one.label
    largest = "" if one.largest is None else "none" if one.largest == 0 else f"{one.largest:.3g}"
    if one.largest is not None and not math.isfinite(one.largest):
        largest = "not a number"
    if one.largest and one.largest_at is not None:
        largest += f" at {one.largest_at}"
    return label, f"{one.compared:,}", f"{one.differing:,}", largest


def _summary(comparison: Comparison) -> Table:
    rows = tuple((row.label, *map(_spread, row.sides)) for row in comparison.summary)
    return Table("Over the whole runs: mean (lowest to highest)", ("field", *_names(comparison)), rows)


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    if spread.lowest == spread.highest:
        return number(spread.mean)
    return f"{number(spread.mean)} ({number(spread.lowest)} to {number(spread.highest)})"


def _losses(comparison: Comparison) -> Table:
    rows = []
    for row in comparison.losses:
        a, b = row.losses
        gap = "-" if a is None or b is None else _gap(a, b, comparison.tolerance)
        cells = ("-" if one is None else number(one) for one in (a, b))
        rows.append((f"{count(row.start)} to {count(row.end)}", *cells, gap))
    measured = [None not in row.sides for row in comparison.summary if row.field == "loss"]
    kind = "" if measured == [True] else ", as reported where it was not measured,"
    title = f"Mean loss{kind} at equal {_plural(comparison.losses_axis)}"
    return Table(title, (comparison.losses_axis, *_names(comparison), "gap"), tuple(rows))


def _gap(a: float, b: float, tolerance: float) -> str:
    return "0" if abs(b - a) <= tolerance * max(abs(a), abs(b)) else f"{b - a:+.4g}"


def _plural(axis: str) -> str:
    return axis if axis.endswith("s") else f"{axis}s"


def _names(comparison: Comparison) -> tuple[str, str]:
    return comparison.sides[0].name, comparison.sides[1].name


def not_compared(comparison: Comparison) -> list[str]:
    """The fields that were not compared, those with one reason together."""
    groups: dict[str, list[str]] = {}
    for one in comparison.not_compared:
        groups.setdefault(one.reason, []).append(one.label)
    return [f"{', '.join(labels)}: {reason}" for reason, labels in groups.items()]
