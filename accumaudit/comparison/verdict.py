"""What came out of a comparison, in sentences that claim no more than the records prove."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from accumaudit.comparison.choosing import same_rows
from accumaudit.comparison.data import Seen
from accumaudit.comparison.model import Difference, FieldResult, NotCompared
from accumaudit.comparison.sides import Facts
from accumaudit.comparison.values import where
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
    gaps: bool
    """Updates between them are not recorded of both."""
    only: tuple[int, int]
    fields: Sequence[FieldResult]
    first: Difference | None
    beside: Sequence[Difference]
    later: Sequence[Difference]
    before: float | None
    """The last place before the first difference."""
    seen: Seen | None
    """How far the data meet, where a digest of them differs."""

    @property
    def recorded(self) -> str:
        """What is to be said of a stretch of places."""
        return ", where both have a record" if self.gaps else ""

    @property
    def skipped(self) -> bool:
        """Whether there is data that no update is of."""
        return any(one.attempts > one.updates for one in self.facts)


OUTCOMES: Final = ("loss", "reported_loss", "grad_norm_before", "grad_norm", "param_digest")
"""Fields of which one at least must agree before two updates are called the same."""


def sentences(told: Outcome) -> tuple[str, ...]:
    """The verdict."""
    compared: dict[str, int] = {}
    for one in told.fields:
        if one.compared and one.counts:
            compared[one.label] = compared.get(one.label, 0) + one.compared
    if not told.places:
        return (f"Nothing was compared: the runs have no {told.axis} in common.", *_alone(told))
    if not compared:
        return ("Nothing was compared: no field is told by both records.", *_alone(told))
    found = _same(told, compared) if told.first is None else _different(told, told.first)
    return (*found, *_alone(told))


def _same(told: Outcome, compared: Mapping[str, int]) -> list[str]:
    last = "" if told.last is None else f" until {where(told.axis, told.last)}, the last that both have"
    labels = [
        label if count == told.places else f"{label} (at {count:,} of {told.places:,} places)"
        for label, count in compared.items()
    ]
    found = [f"{_agreement(told)}{last}{told.recorded}; compared: {', '.join(labels)}."]
    bits = [one.first for one in told.fields if one.field == "param_digest" and one.first is not None]
    if bits:
        found.append(f"{_capital(bits[0].message)}; no number that was compared does.")
    return found


def _different(told: Outcome, first: Difference) -> list[str]:
    found = [f"{_capital(_first(told, first))}."]
    if told.beside:
        labels = list(dict.fromkeys(one.label for one in told.beside))
        found.append(f"At the same place differ: {', '.join(labels)}.")
    if told.before is not None:
        until = f"until {where(told.axis, told.before)}{told.recorded}"
        found.append(f"{_agreement(told)} {until}, in all that was compared.")
    return found


def _first(told: Outcome, first: Difference) -> str:
    if first.field in ("data_order", "param_digest"):
        return first.message
    if first.field == "data_digest":
        return _data_from(told, first)
    much = "" if first.relative is None or first.relative > 1 else f", a share of {first.relative:.3g} apart"
    return f"the first difference is in the {first.message}{much}"


def _data_from(told: Outcome, first: Difference) -> str:
    key = (first.field, first.optimizer)
    result = next(one for one in told.fields if (one.field, one.optimizer) == key)
    if result.differing == 1:
        return first.message
    what = "the data" if told.seen is not None and told.seen.proven else "the digests of the data"
    if result.differing == result.compared:
        return f"{what} differ, from {first.where} on"
    return (
        f"{what} differ, first at {first.where}, at {result.differing:,} of {result.compared:,} places in all"
    )


def _agreement(told: Outcome) -> str:
    known = any(one.field in OUTCOMES and one.compared for one in told.fields)
    exact = f" to {told.tolerance:g}" if told.tolerance else " to the last digit"
    return f"{'The same update' if known else 'No difference'}{exact}"


def _alone(told: Outcome) -> list[str]:
    counts = [(name, more) for name, more in zip(told.names, told.only, strict=True) if more]
    if told.axis in ("update", "step"):
        return [
            f"The record of {name} has {plural(more, told.axis)} that the other has not."
            for name, more in counts
        ]
    behind = "behind the last place that both have" if told.places else "and no place is common"
    return [f"{name} has {plural(more, 'update')} {behind}." for name, more in counts]


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
    known, ordered = (sum(one.compared for one in some) for some in (sets, orders))
    places = f"all {plural(known, 'place')}"
    if known < told.places:
        places = f"the {plural(known, 'place')} of which both have the digests"
    end = "; what skipped attempts saw is not compared." if told.skipped else "."
    moved = min((one.first for one in orders if one.first is not None), key=lambda one: one.at, default=None)
    if moved is not None:
        return f"Both saw the same micro-batches at {places}; {moved.message}{end}"
    if ordered < known:
        much = "divided into other updates or over other ranks"
        if ordered:
            much = f"in the same order at the {ordered:,} of them where each is one update of both"
        return f"Both saw the same micro-batches at {places}, {much}{end}"
    return f"Both saw the same data in the same order, at {places}{end}"


def _unknown_data(told: Outcome, missing: Sequence[NotCompared]) -> str:
    none = "no record tells it" if told.places else f"the runs have no {told.axis} in common"
    known = next((one.reason for one in missing if one.label == "data"), none)
    beside = ""
    if not same_rows(told.facts):
        counted = [one for one in told.fields if one.field in ("samples", "valid_tokens") and one.compared]
        agree = [one.label for one in counted if one.first is None and one.compared == told.places]
        beside = f"; their {' and '.join(agree)} agree at every place" if agree else ""
    return f"Whether both saw the same data is not known: {known}{beside}."


def _other_data(told: Outcome, first: Difference) -> str:
    assert told.seen is not None
    of_first, by_second = told.seen.of_first, told.seen.by_second
    a, b = told.names
    held = f"{by_second:,}" if by_second else "none"
    text = f"of the {of_first:,} different micro-batches of {a}, the record of {b} holds {held}"
    if by_second == of_first:
        text = f"the record of {b} holds every micro-batch of {a}, at one place or another"
    if told.seen.proven:
        applied = " in the updates that were applied" if told.skipped else ""
        return f"Not the same data{applied}, first at {first.where}: {text}."
    return (
        f"Not the same digests of the data, first at {first.where}: {text}. The same data have other digests "
        "as another integer type, or on another kind of device."
    )
