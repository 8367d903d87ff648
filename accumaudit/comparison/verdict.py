"""What came out of a comparison, in sentences that claim no more than the records prove."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accumaudit.comparison.choosing import same_rows
from accumaudit.comparison.model import Difference, FieldResult, NotCompared
from accumaudit.comparison.sides import Facts
from accumaudit.comparison.values import count
from accumaudit.outputs.words import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What is known when the verdict is told."""

    names: tuple[str, str]
    facts: tuple[Facts, Facts]
    axis: str
    tolerance: float
    places: int
    """Places of both runs."""
    last: float | None
    """The last one."""
    only: tuple[int, int]
    fields: Sequence[FieldResult]
    first: Difference | None
    beside: Sequence[Difference]
    later: Sequence[Difference]
    before: float | None
    """The last place before the first difference."""
    elsewhere: tuple[int, int] | None
    """Where the data differ: micro-batches of the first run, and how many of them the second saw ever."""


def sentences(told: Outcome) -> tuple[str, ...]:
    """The verdict."""
    compared = list(dict.fromkeys(one.label for one in told.fields if one.compared and one.counts))
    if not told.places:
        return (f"Nothing was compared: the runs have no {told.axis} in common.", *_alone(told))
    if not compared:
        return ("Nothing was compared: no field is told by both records.", *_alone(told))
    found = [*_same(told, compared)] if told.first is None else [*_different(told, told.first)]
    return (*found, *_alone(told))


def _same(told: Outcome, compared: Sequence[str]) -> list[str]:
    last = "" if told.last is None else f" until {_place(told, told.last)}, the last that both have"
    found = [f"The same update{_to(told)}{last}; compared: {', '.join(compared)}."]
    bits = [one.first for one in told.fields if one.field == "param_digest" and one.first is not None]
    if bits:
        found.append(f"{_capital(bits[0].message)}: their bits differ, which the tolerance allows.")
    return found


def _different(told: Outcome, first: Difference) -> list[str]:
    found = [f"{_capital(_first(told, first))}."]
    if told.beside:
        labels = list(dict.fromkeys(one.label for one in told.beside))
        found.append(f"At the same place differ: {', '.join(labels)}.")
    if told.before is not None:
        found.append(f"The same update{_to(told)} until {_place(told, told.before)}.")
    return found


def _first(told: Outcome, first: Difference) -> str:
    results = (one for one in told.fields if one.field == first.field and one.optimizer == first.optimizer)
    result = next(results)
    if first.field == "data_digest":
        return f"the data differ, from {first.where} on" if result.differing > 1 else first.message
    much = "" if first.relative is None or first.relative > 1 else f", a share of {first.relative:.3g} apart"
    return f"the first difference is in the {first.message}{much}"


def _to(told: Outcome) -> str:
    return f" to {told.tolerance:.0e}" if told.tolerance else ", bit for bit,"


def _alone(told: Outcome) -> list[str]:
    counts = [(name, more) for name, more in zip(told.names, told.only, strict=True) if more]
    if told.axis in ("update", "step"):
        return [f"{name} has {plural(more, told.axis)} that the other has not." for name, more in counts]
    behind = "behind the last place that both have" if told.places else "and no place is common"
    return [f"{name} has {plural(more, 'update')} {behind}." for name, more in counts]


def _place(told: Outcome, place: float) -> str:
    return f"{count(place)} {told.axis}" if told.axis == "valid tokens" else f"{told.axis} {count(place)}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def data(told: Outcome, missing: Sequence[NotCompared]) -> str:
    """Whether both saw the same data in the same order."""
    sets = [one for one in told.fields if one.field == "data_digest" and one.compared]
    orders = [one for one in told.fields if one.field == "data_order" and one.compared]
    if not sets:
        return _unknown_data(told, missing)
    first = min((one.first for one in sets if one.first is not None), key=lambda one: one.at, default=None)
    if first is not None:
        return _other_data(told, first)
    places = plural(sum(one.compared for one in sets), "place")
    moved = [one.first for one in orders if one.first is not None]
    if moved:
        return f"Both saw the same micro-batches at all {places}; {moved[0].message}."
    if orders:
        return f"Both saw the same data in the same order, at all {places} that were compared."
    return f"Both saw the same micro-batches at all {places}, divided into other updates or over other ranks."


def _unknown_data(told: Outcome, missing: Sequence[NotCompared]) -> str:
    known = next((one.reason for one in missing if one.label == "data"), "no record tells it")
    if not same_rows(told.facts):
        counted = [one for one in told.fields if one.field in ("samples", "valid_tokens") and one.compared]
        agree = [one.label for one in counted if one.first is None]
        beside = f"; their {' and '.join(agree)} agree at every place" if agree else ""
        return f"Whether both saw the same data is not known: {known}{beside}."
    return f"Whether both saw the same data is not known: {known}."


def _other_data(told: Outcome, first: Difference) -> str:
    text = f"Not the same data, from {first.where} on"
    if told.elsewhere is None:
        return f"{text}."
    all_of_a, seen = told.elsewhere
    a, b = told.names
    if seen == all_of_a:
        return f"{text}: {b} saw every micro-batch of {a}, at other places."
    much = f"{seen:,}" if seen else "none"
    return f"{text}: of the {all_of_a:,} different micro-batches of {a}, {b} saw {much} at any time."
