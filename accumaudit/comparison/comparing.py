"""Compares two runs of one ledger: aligned by what they can be, told field by field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from accumaudit.comparison import data, summing, verdict
from accumaudit.comparison.aligning import ENDS, SIDES, align, gather
from accumaudit.comparison.charting import with_histories
from accumaudit.comparison.choosing import axis, chosen, of_layout, refusal, remarks, unfit
from accumaudit.comparison.differing import Tally, Teller, tallies
from accumaudit.comparison.fields import BY_NAME, FIELDS, NUMBER
from accumaudit.comparison.model import (
    TOLERANCE,
    By,
    Comparison,
    Difference,
    FieldResult,
    NotCompared,
    Side,
)
from accumaudit.comparison.sides import Facts, facts_of, side_of
from accumaudit.outputs.words import plural

if TYPE_CHECKING:
    from accumaudit.ledger.reader import Ledger

_PLACES: Final = """
SELECT coalesce(sum(places), 0)::BIGINT, max(last), coalesce(bool_or(places <= last - first), false) FROM (
    SELECT count(*) AS places, min(a.place) AS first, max(a.place) AS last
    FROM spans_a a JOIN spans_b b ON a.optimizer = b.optimizer AND a.place = b.place GROUP BY a.optimizer
)
"""
_NEITHER_FINITE: Final = """
SELECT {columns} FROM spans_a a JOIN spans_b b ON a.optimizer = b.optimizer AND a.place = b.place
"""
_ALONE: Final = """
SELECT count(*) FROM {one} x
ANTI JOIN {other} y ON x.optimizer = y.optimizer AND x.number = y.number
"""
_LATER: Final = """
SELECT count(*) FROM transactions_{side} WHERE {end} > (
    SELECT max(a.place) FROM spans_a a JOIN spans_b b ON a.optimizer = b.optimizer AND a.place = b.place)
"""
_BEFORE: Final = """
SELECT max(a.place) FROM spans_a a JOIN spans_b b ON a.optimizer = b.optimizer AND a.place = b.place
WHERE a.optimizer = $optimizer AND a.place < $place
"""


class ComparisonError(Exception):
    """The two runs cannot be compared so; the text says why."""


def compare(
    ledger: Ledger,
    run_id_a: str,
    run_id_b: str,
    *,
    by: By | None = None,
    tolerance: float = TOLERANCE,
    charts: bool = False,
) -> Comparison:
    """Compare two runs of a ledger, aligned by what is asked for or else by what fits them.

    With `charts` the comparison holds what they draw.

    Raises:
        ComparisonError: they cannot be aligned so.
    """
    comparison = _Comparing(ledger, (run_id_a, run_id_b), by, tolerance).comparison()
    return with_histories(ledger.connection, comparison) if charts else comparison


class _Comparing:
    """The tables of two runs while they are compared."""

    def __init__(self, ledger: Ledger, run_ids: tuple[str, str], by: By | None, tolerance: float) -> None:
        self._connection = ledger.connection
        self._paths = dict(ledger.runs)
        self._run_ids = run_ids
        self._tolerance = tolerance
        self._names = run_ids if run_ids[0] != run_ids[1] else (f"{run_ids[0]} (A)", f"{run_ids[1]} (B)")
        gather(self._connection, run_ids)
        self._facts: tuple[Facts, Facts] = (
            facts_of(self._connection, "a", run_ids[0]),
            facts_of(self._connection, "b", run_ids[1]),
        )
        if by is None:
            self._by, self._why = chosen(self._facts, self._names)
        else:
            self._by, self._why = by, "as it was asked for"
        reason = refusal(self._by, self._facts, self._names)
        if reason is not None:
            raise ComparisonError(reason)
        self._axis = axis(self._by, self._facts)

    def comparison(self) -> Comparison:
        """The comparison."""
        meet = align(self._connection, self._by)
        reasons = unfit(self._facts, self._by, meet=meet)
        found = tallies(self._connection, self._tolerance, reasons)
        fields = self._results(found)
        missing = [*of_layout(reasons), *self._missing(found)]
        seen = data.seen(self._connection, self._run_ids, self._facts, fields)
        if data.of_other_kinds(self._connection, fields, seen, self._tolerance):
            fields = [one for one in fields if one.field not in data.DIGESTS]
            missing.insert(0, NotCompared(label=BY_NAME["data_digest"].label, reason=data.OTHER_KIND))
        differences = _in_order(fields)
        first = differences[0] if differences else None
        beside = [one for one in differences[1:] if _same_place(one, differences[0])]
        later = [one for one in differences[1:] if not _same_place(one, differences[0])]
        told = self._outcome(fields, first, beside, later, seen)
        heads, rows = summing.near(self._connection, first, beside) if first else ((), ())
        by_tokens = all(one.with_tokens for one in self._facts)
        losses_by: By = "tokens" if by_tokens else self._by
        return Comparison(
            sides=(self._side(0), self._side(1)),
            by=self._by,
            axis=self._axis,
            why=self._why,
            tolerance=self._tolerance,
            places=told.places,
            only=told.only,
            verdict=verdict.sentences(told),
            first=first,
            beside=tuple(beside),
            later=tuple(later),
            data=verdict.data(told, missing),
            fields=tuple(fields),
            not_compared=tuple(missing),
            remarks=tuple(self._remarks(meet=meet)),
            summary=summing.summary(self._connection),
            losses=summing.losses(self._connection, losses_by, 0 if first is None else first.optimizer),
            losses_axis="valid tokens" if by_tokens else self._axis,
            near_heads=heads,
            near=rows,
        )

    def _side(self, place: int) -> Side:
        run_id = self._run_ids[place]
        return side_of(self._facts[place], run_id, self._paths[run_id], self._names[place])

    def _results(self, found: Sequence[Tally]) -> list[FieldResult]:
        teller = Teller(self._connection, self._run_ids, self._names, self._by, self._axis)
        optimizers = len({one.optimizer for one in found})
        strict = self._tolerance == 0
        results = [teller.result(one, optimizers, strict=strict) for one in found if one.compared]
        return [one for one in results if not _stands_behind(one, results)]

    def _missing(self, found: Sequence[Tally]) -> list[NotCompared]:
        """The fields that are nowhere told by both, or not everywhere."""
        missing: dict[str, NotCompared] = {}
        compared = {one.field.name for one in found if one.compared}
        for one in found:
            name = one.field.name
            if one.field.behind or (name in missing) or (not one.compared and name in compared):
                continue
            reason = self._reason(one)
            if reason is not None:
                missing[name] = NotCompared(label=one.field.label, reason=reason)
        return list(missing.values())

    def _reason(self, one: Tally) -> str | None:
        if one.compared:
            beside = [
                f"{name} alone tells it at {plural(count, 'place')}"
                for name, count in zip(self._names, one.alone, strict=True)
                if count
            ]
            return " and ".join(beside) or None
        partial = [bool(facts.partial) for facts in self._facts]
        if not any(one.alone):
            return f"neither record tells it{_of_all(any(partial))}"
        if all(one.alone):
            return "no place has it in both records"
        silent = 1 if one.alone[0] else 0
        if one.field.over == "each" and self._by != "update" and self._tells(one.field.name, silent):
            return f"it belongs to one update, and a place is several updates of {self._names[silent]}"
        return f"the record of {self._names[silent]} does not tell it{_of_all(partial[silent])}"

    def _tells(self, field: str, side: int) -> bool:
        (count,) = self._ask(f"SELECT count({field}) FROM transactions_{SIDES[side]}")
        return bool(count)

    def _outcome(
        self,
        fields: Sequence[FieldResult],
        first: Difference | None,
        beside: Sequence[Difference],
        later: Sequence[Difference],
        seen: data.Seen | None,
    ) -> verdict.Outcome:
        places, last, gaps = self._ask(_PLACES)
        before = None
        if first is not None:
            (before,) = self._ask(_BEFORE, {"optimizer": first.optimizer, "place": first.at})
        return verdict.Outcome(
            names=self._names,
            facts=self._facts,
            axis=self._axis,
            tolerance=self._tolerance,
            places=places,
            last=last,
            gaps=self._by == "update" and gaps,
            only=self._only(),
            fields=fields,
            first=first,
            beside=beside,
            later=later,
            before=before,
            seen=seen,
        )

    def _only(self) -> tuple[int, int]:
        """The updates that one run has alone: anywhere by update, else behind the last common place."""
        if self._by != "update":
            (a,), (b,) = (self._ask(_LATER.format(side=side, end=ENDS[self._by])) for side in SIDES)
            return a, b
        (a,) = self._ask(_ALONE.format(one="transactions_a", other="transactions_b"))
        (b,) = self._ask(_ALONE.format(one="transactions_b", other="transactions_a"))
        return a, b

    def _remarks(self, *, meet: bool) -> list[str]:
        told = remarks(self._facts, self._names, self._by)
        if self._run_ids[0] == self._run_ids[1]:
            told.insert(0, "both are the same run")
        if not meet:
            told.append(
                f"too few updates of both end at the same count of {self._axis}: each update of "
                f"{self._names[0]} stands beside the update of {self._names[1]} in which it ends"
            )
        for name, only in zip(self._names, self._optimizers(), strict=True):
            if only:
                told.append(f"{name} alone has optimizer {', '.join(map(str, only))}: it is not compared")
        return [*told, *self._neither_finite()]

    def _neither_finite(self) -> list[str]:
        """Where two values cannot be told apart because neither is a number."""
        fields = [one for one in FIELDS if one.kind == NUMBER]
        both = "count(CASE WHEN isnan(a.{0}::DOUBLE) AND isnan(b.{0}::DOUBLE) THEN 1 END)"
        counts = self._ask(_NEITHER_FINITE.format(columns=", ".join(both.format(one.name) for one in fields)))
        return [
            f"the {one.label} is not finite in both at {plural(count, 'place')}, which counts as the same"
            for one, count in zip(fields, counts, strict=True)
            if count and one.behind is None
        ]

    def _optimizers(self) -> tuple[list[int], list[int]]:
        """The optimizers that one run has alone."""
        query = "SELECT DISTINCT optimizer FROM attempts_{}"
        a, b = ({row[0] for row in self._connection.execute(query.format(side)).fetchall()} for side in SIDES)
        return sorted(a - b), sorted(b - a)

    def _ask(self, query: str, values: object = None) -> tuple[Any, ...]:
        row = self._connection.execute(query, values).fetchone()
        assert row is not None
        return row


def _of_all(partial: bool) -> str:
    return " of all ranks" if partial else ""


def _stands_behind(one: FieldResult, results: Sequence[FieldResult]) -> bool:
    """Whether another field tells as much."""
    name = BY_NAME[one.field].behind
    if name is None:
        return False
    if one.first is None:
        return True
    same = (other.first for other in results if (other.field, other.optimizer) == (name, one.optimizer))
    return any(first is not None and first.at <= one.first.at for first in same)


def _in_order(fields: Sequence[FieldResult]) -> list[Difference]:
    """The first differences of fields that count, by place; at one place in the order of the fields."""
    order = {name: place for place, name in enumerate(BY_NAME)}
    found = [one.first for one in fields if one.counts and one.first is not None]
    return sorted(found, key=lambda one: (one.at, order[one.field], one.optimizer))


def _same_place(one: Difference, other: Difference) -> bool:
    return (one.at, one.optimizer) == (other.at, other.optimizer)
