"""Sums up what two runs did: ranges of fields, the loss at equal places, the places beside one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import duckdb

from accumaudit.comparison.aligning import ENDS
from accumaudit.comparison.fields import BY_NAME, SUMMARY
from accumaudit.comparison.model import By, Difference, LossRow, NearRow, Spread, SummaryRow, Value
from accumaudit.comparison.values import told

STRETCHES: Final = 12
"""Parts of the axis over which the loss is averaged."""

NEAR: Final = 3
"""Places in the table before and after the first difference."""

COLUMNS: Final = 6
"""Fields of that table."""

_LOSSES: Final = """
WITH ended AS (
    SELECT 'a' AS side, optimizer, {end}::DOUBLE AS place, coalesce(loss, reported_loss) AS loss,
           coalesce(valid_tokens, 1) AS tokens FROM transactions_a
    UNION ALL
    SELECT 'b', optimizer, {end}::DOUBLE, coalesce(loss, reported_loss), coalesce(valid_tokens, 1)
    FROM transactions_b
),
known AS (
    FROM ended WHERE place IS NOT NULL AND loss IS NOT NULL AND NOT isnan(loss) AND optimizer = $optimizer
),
reach AS (
    SELECT greatest(min(place) FILTER (side = 'a'), min(place) FILTER (side = 'b')) AS lowest,
           least(max(place) FILTER (side = 'a'), max(place) FILTER (side = 'b')) AS highest
    FROM known
),
parted AS (
    SELECT known.*, lowest, (highest - lowest) / $parts AS width,
           least(floor((place - lowest) / nullif((highest - lowest) / $parts, 0)), $parts - 1) AS part
    FROM known, reach WHERE place BETWEEN lowest AND highest
)
SELECT coalesce(part, 0) AS part, min(lowest) + coalesce(part, 0) * min(width),
       min(lowest) + (coalesce(part, 0) + 1) * min(width),
       sum(loss * tokens) FILTER (side = 'a') / sum(tokens) FILTER (side = 'a'),
       sum(loss * tokens) FILTER (side = 'b') / sum(tokens) FILTER (side = 'b')
FROM parted GROUP BY part ORDER BY part
"""
_NEAR: Final = """
WITH pairs AS (
    SELECT a.place, {columns} FROM spans_a a JOIN spans_b b ON a.optimizer = b.optimizer AND a.place = b.place
    WHERE a.optimizer = $optimizer
)
SELECT * FROM (
    (SELECT * FROM pairs WHERE place < $place ORDER BY place DESC LIMIT {near})
    UNION ALL (SELECT * FROM pairs WHERE place >= $place ORDER BY place LIMIT {near} + 1)
) ORDER BY place
"""


def summary(connection: duckdb.DuckDBPyConnection) -> tuple[SummaryRow, ...]:
    """The ranges of the fields that either run tells, over its attempts that were not skipped."""
    columns = ", ".join(
        f"min({name}) FILTER (NOT isnan({name}::DOUBLE)), avg({name}) FILTER (NOT isnan({name}::DOUBLE)), "
        f"max({name}) FILTER (NOT isnan({name}::DOUBLE)), count({name}) FILTER (NOT isnan({name}::DOUBLE))"
        for name in SUMMARY
    )
    sides = []
    for side in ("a", "b"):
        row = connection.execute(f"SELECT {columns} FROM attempts_{side} WHERE NOT skipped").fetchone()
        assert row is not None
        sides.append([_spread(row[4 * place : 4 * place + 4]) for place in range(len(SUMMARY))])
    rows = zip(SUMMARY, *sides, strict=True)
    return tuple(
        SummaryRow(field=name, label=BY_NAME[name].label, sides=(a, b)) for name, a, b in rows if a or b
    )


def _spread(values: Sequence[float | None]) -> Spread | None:
    lowest, mean, highest, count = values
    if not count or lowest is None or mean is None or highest is None:
        return None
    return Spread(lowest=float(lowest), mean=float(mean), highest=float(highest), count=int(count))


def losses(connection: duckdb.DuckDBPyConnection, by: By, optimizer: int) -> tuple[LossRow, ...]:
    """The mean loss of both over equal parts of the stretch that both have."""
    values = {"optimizer": optimizer, "parts": STRETCHES}
    rows = connection.execute(_LOSSES.format(end=ENDS[by]), values).fetchall()
    return tuple(LossRow(start=start, end=stop, losses=(a, b)) for _, start, stop, a, b in rows)


def near(
    connection: duckdb.DuckDBPyConnection, first: Difference, beside: Sequence[Difference]
) -> tuple[tuple[str, ...], tuple[NearRow, ...]]:
    """The labels of some fields, those that differ first, and their values beside the first difference."""
    names = [one.field for one in (first, *beside) if not one.field.endswith(("_digest", "_order"))]
    usual = ("valid_tokens", "learning_rate", "total_weight", "loss", "reported_loss", "grad_norm", "skips")
    names = list(dict.fromkeys((*names, *(name for name in usual if _known(connection, name)))))[:COLUMNS]
    if not names:
        return (), ()
    columns = ", ".join(f"a.{name} AS a_{name}, b.{name} AS b_{name}" for name in names)
    values = {"optimizer": first.optimizer, "place": first.at}
    rows = connection.execute(_NEAR.format(columns=columns, near=NEAR), values).fetchall()
    found = []
    for place, *cells in rows:
        texts = ((_cell(cells[2 * i]), _cell(cells[2 * i + 1])) for i in range(len(names)))
        found.append(NearRow(at=float(place), cells=tuple(texts)))
    return tuple(BY_NAME[name].label for name in names), tuple(found)


def _known(connection: duckdb.DuckDBPyConnection, name: str) -> bool:
    row = connection.execute(
        f"SELECT (SELECT count({name}) FROM spans_a) > 0 AND (SELECT count({name}) FROM spans_b) > 0"
    ).fetchone()
    return row is not None and bool(row[0])


def _cell(value: Value | list[float]) -> str:
    if isinstance(value, list):
        return ", ".join(told(one) for one in value[:3]) + (" ..." if len(value) > 3 else "")
    if isinstance(value, float) and not math.isfinite(value):
        return "not finite"
    if value is None:
        return "-"
    return told(value)
