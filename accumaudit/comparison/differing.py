"""Compares two aligned runs field by field, and tells the first place where each differs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb

from accumaudit.comparison.aligning import SIDES
from accumaudit.comparison.fields import COARSE, COUNT, EXACT, FIELDS, LIST, Field
from accumaudit.comparison.model import By, Difference, FieldResult, Value
from accumaudit.comparison.values import both, told, where
from accumaudit.postmortem.model import Moment

_MACROS: Final = """
CREATE OR REPLACE TEMP MACRO apart(x, y) AS CASE
    WHEN x IS NULL OR y IS NULL THEN NULL WHEN x = y THEN 0
    WHEN isnan(x::DOUBLE) OR isnan(y::DOUBLE) THEN 'Infinity'::DOUBLE
    ELSE abs(x::DOUBLE - y::DOUBLE) / greatest(abs(x::DOUBLE), abs(y::DOUBLE)) END;
CREATE OR REPLACE TEMP MACRO lists_apart(x, y) AS CASE
    WHEN x IS NULL OR y IS NULL THEN NULL WHEN x = y THEN 0
    WHEN len(x) <> len(y) THEN 'Infinity'::DOUBLE
    ELSE list_max(list_transform(list_zip(x, y), lambda z: coalesce(apart(z[1], z[2]), 0))) END
"""

_RESULTS: Final = """
CREATE OR REPLACE TEMP TABLE results AS
WITH pairs AS (
    SELECT a.optimizer, a.place, coalesce(a.coarse OR b.coarse, false) AS coarse, {apart}
    FROM spans_a a JOIN spans_b b ON a.optimizer = b.optimizer AND a.place = b.place
)
SELECT optimizer, count(*) AS places, {aggregates} FROM pairs GROUP BY optimizer ORDER BY optimizer
"""
_AT: Final = """
SELECT {columns} FROM spans_{side} WHERE optimizer = $optimizer AND place = $place
"""
# The first digests of a place, in the order of updates, ranks and micro-steps, that the other run has not
# there; else those at which the two orders part.
_DIGESTS: Final = """
WITH digests AS (
    {sides}
),
placed AS (SELECT *, row_number() OVER (PARTITION BY side ORDER BY number, rank, step) AS place FROM digests),
lacking AS (
    SELECT side, digest, place FROM placed p
    ANTI JOIN placed other ON other.side <> p.side AND other.digest = p.digest
),
parting AS (
    SELECT a.digest AS a, b.digest AS b, place FROM (FROM placed WHERE side = 'a') a
    JOIN (FROM placed WHERE side = 'b') b USING (place) WHERE a.digest <> b.digest
)
SELECT coalesce(lacking.a, parted.a, begun.a), coalesce(lacking.b, parted.b, begun.b)
FROM (SELECT arg_min(digest, place) FILTER (side = 'a') AS a, arg_min(digest, place) FILTER (side = 'b') AS b
      FROM lacking) lacking,
     (SELECT arg_min(a, place) AS a, arg_min(b, place) AS b FROM parting) parted,
     (SELECT arg_min(digest, place) FILTER (side = 'a') AS a, arg_min(digest, place) FILTER (side = 'b') AS b
      FROM placed) begun
"""
_DIGESTS_OF: Final = """
    SELECT '{side}' AS side, number, rank, unnest(u.data_digest) AS digest,
           generate_subscripts(u.data_digest, 1) AS step
    FROM updates u JOIN attempts_{side} t USING (launch, optimizer, attempt_id)
    JOIN spans_{side} s ON s.optimizer = t.optimizer AND t.number BETWEEN s.first_number AND s.last_number
    WHERE run_id = $run_{side} AND tokens_rank AND t.main AND t.optimizer = $optimizer AND s.place = $place
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What became of one field of one optimizer."""

    optimizer: int
    field: Field
    places: int
    compared: int
    alone: tuple[int, int]
    """Places where one of the runs tells it alone."""
    differing: int
    largest: float | None
    largest_at: float | None
    first_at: float | None
    first_differ: float | None
    """How far apart the two are there."""


def tallies(connection: duckdb.DuckDBPyConnection, tolerance: float, unfit: Iterable[str]) -> list[Tally]:
    """Compare all fields at all places in one pass."""
    compared = [one for one in FIELDS if one.name not in set(unfit)]
    connection.execute(_MACROS)
    apart = ", ".join(f"{_apart(one)}, {_alone(one)}" for one in compared)
    aggregates = ", ".join(_aggregates(one) for one in compared)
    connection.execute(_RESULTS.format(apart=apart, aggregates=aggregates), {"tolerance": tolerance})
    rows = connection.execute("FROM results").fetchall()
    return [
        tally for optimizer, places, *rest in rows for tally in _tallies(optimizer, places, rest, compared)
    ]


def _tallies(
    optimizer: int, places: int, values: Sequence[Any], compared: Sequence[Field]
) -> Iterator[Tally]:
    for place, one in enumerate(compared):
        count, *alone, differing, largest, largest_at, first, first_differ = values[8 * place : 8 * place + 8]
        yield Tally(
            optimizer=optimizer,
            field=one,
            places=places,
            compared=count,
            alone=(alone[0], alone[1]),
            differing=differing,
            largest=largest,
            largest_at=largest_at,
            first_at=first,
            first_differ=first_differ,
        )


def _apart(one: Field) -> str:
    name = one.name
    if one.kind == EXACT:
        return f"if(a.{name} IS NULL OR b.{name} IS NULL, NULL, (a.{name} <> b.{name})::DOUBLE) AS {name}"
    return f"{'lists_apart' if one.kind == LIST else 'apart'}(a.{name}, b.{name}) AS {name}"


def _alone(one: Field) -> str:
    a, b = f"a.{one.name}", f"b.{one.name}"
    return f"if({a} IS NULL = ({b} IS NULL), NULL, {b} IS NULL) AS alone_{one.name}"


def _aggregates(one: Field) -> str:
    name = one.name
    allowed = "0" if one.kind in (EXACT, COUNT) else "$tolerance::DOUBLE"
    if one.coarse:
        allowed = f"if(coarse, greatest({allowed}, {one.coarse * COARSE}), {allowed})"
    return (
        f"count({name}), count(*) FILTER (alone_{name}), count(*) FILTER (NOT alone_{name}), "
        f"count(*) FILTER ({name} > {allowed}), max({name}), "
        f"arg_max(place, ({name}, -place)) FILTER ({name} IS NOT NULL), "
        f"min(place) FILTER ({name} > {allowed}), "
        f"arg_min({name}, place) FILTER ({name} > {allowed})"
    )


class Teller:
    """Tells differences of two runs in words."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        run_ids: tuple[str, str],
        names: tuple[str, str],
        by: By,
        axis: str,
    ) -> None:
        self._connection = connection
        self._run_ids = run_ids
        self._names = names
        self._by = by
        self._axis = axis

    def result(self, tally: Tally, optimizers: int, *, strict: bool) -> FieldResult:
        """The tally with its places in words; strict where bits count too."""
        largest_at = None
        if tally.largest_at is not None and tally.largest:
            largest_at = where(self._axis, tally.largest_at)
        one = tally.field
        return FieldResult(
            optimizer=tally.optimizer,
            field=one.name,
            label=one.label,
            compared=tally.compared,
            differing=tally.differing,
            largest=None if one.kind == EXACT else tally.largest,
            largest_at=None if one.kind == EXACT else largest_at,
            first=None if tally.first_at is None else self._difference(tally, optimizers),
            counts=one.counts or strict,
        )

    def _difference(self, tally: Tally, optimizers: int) -> Difference:
        one, place = tally.field, tally.first_at
        assert place is not None
        rows = [self._row(side, tally.optimizer, place, one) for side in SIDES]
        values = (rows[0]["value"], rows[1]["value"])
        if one.name in ("data_digest", "data_order"):
            values = self._digests(tally.optimizer, place)
        place_in_words = where(self._axis, place, *(self._ends(row) for row in rows))
        if optimizers > 1:
            place_in_words += f" of optimizer {tally.optimizer}"
        return Difference(
            optimizer=tally.optimizer,
            field=one.name,
            label=one.label,
            at=place,
            where=place_in_words,
            moments=(_moment(rows[0], tally.optimizer), _moment(rows[1], tally.optimizer)),
            values=values,
            relative=None if one.kind == EXACT else tally.first_differ,
            message=self._message(one, place_in_words, values),
        )

    def _row(self, side: str, optimizer: int, place: float, one: Field) -> dict[str, Any]:
        columns = f"launch, attempt_id, first_number, last_number, {one.name} AS value"
        cursor = self._connection.execute(
            _AT.format(side=side, columns=columns), {"optimizer": optimizer, "place": place}
        )
        row = cursor.fetchone()
        assert row is not None
        names = ("launch", "attempt_id", "first_number", "last_number", "value")
        return dict(zip(names, (*row[:4], _plain(row[4])), strict=True))

    def _ends(self, row: Mapping[str, Any]) -> str | None:
        """Which updates of its own a place is of, where it is counted otherwise."""
        if self._by == "update":
            return None
        first, last = row["first_number"], row["last_number"]
        return f"update {first:,}" if first == last else f"updates {first:,} to {last:,}"

    def _digests(self, optimizer: int, place: float) -> tuple[Value, Value]:
        query = _DIGESTS.format(sides="UNION ALL".join(_DIGESTS_OF.format(side=side) for side in SIDES))
        a, b = self._run_ids
        values = {"run_a": a, "run_b": b, "optimizer": optimizer, "place": place}
        found = self._connection.execute(query, values).fetchone()
        assert found is not None
        return found[0], found[1]

    def _message(self, one: Field, place: str, values: tuple[Value, Value]) -> str:
        if one.name == "data_order":
            return f"the micro-batches of {place} are the same in another order"
        a, b = (f"{text} in {name}" for text, name in zip(both(*values), self._names, strict=True))
        whose = {"data_digest": "data", "param_digest": "parameters"}.get(one.name)
        if whose is not None:
            return f"the digests of the {whose} differ at {place}: {a} and {b}"
        return f"{one.label} at {place}: {a} and {b}"


def _moment(row: Mapping[str, Any], optimizer: int) -> Moment:
    return Moment(
        launch=row["launch"], attempt_id=row["attempt_id"], optimizer=optimizer, number=row["last_number"]
    )


def _plain(value: Any) -> Value:
    """The value; a list as a text."""
    if isinstance(value, list):
        return ", ".join(told(one) for one in value[:8]) + (" ..." if len(value) > 8 else "")
    if isinstance(value, float) and not math.isfinite(value):
        return "not finite"
    if isinstance(value, float | int | str | bool) or value is None:
        return value
    return str(value)
