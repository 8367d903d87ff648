"""Whether digests of two runs tell their data apart, and how much of the one's data the other saw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import duckdb

from accumaudit.comparison.model import FieldResult

DIGESTS: Final = ("data_digest", "data_order")

SAME_LOSS: Final = 1e-5
"""Relative difference of two losses up to which they may be of the same data on other hardware."""

OTHER_KIND: Final = (
    "every digest differs though the loss is the same at the first place: the inputs may be of another "
    "integer type, or lie on another kind of device, whose digests do not compare"
)

_SEEN: Final = """
WITH digests AS (
    SELECT DISTINCT run_id, unnest(data_digest) AS digest FROM updates
    WHERE run_id IN ($a, $b) AND tokens_rank
)
SELECT count(*), count(*) FILTER (digest IN (SELECT digest FROM digests WHERE run_id = $b))
FROM digests WHERE run_id = $a AND digest IS NOT NULL
"""
_LOSSES: Final = """
SELECT apart(coalesce(a.loss, a.reported_loss), coalesce(b.loss, b.reported_loss))
FROM spans_a a JOIN spans_b b ON a.optimizer = b.optimizer AND a.place = b.place
WHERE a.optimizer = $optimizer AND a.place = $place
"""


def seen(
    connection: duckdb.DuckDBPyConnection, run_ids: tuple[str, str], fields: Sequence[FieldResult]
) -> tuple[int, int] | None:
    """The different micro-batches of the first run, and how many of them the second saw at any time.

    None where no place has other data.
    """
    if not any(one.field == "data_digest" and one.first is not None for one in fields):
        return None
    row = connection.execute(_SEEN, {"a": run_ids[0], "b": run_ids[1]}).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def of_other_kinds(
    connection: duckdb.DuckDBPyConnection,
    fields: Sequence[FieldResult],
    shared: tuple[int, int] | None,
    tolerance: float,
) -> bool:
    """Whether all digests differ where the losses say that the data may be the same."""
    data = [one for one in fields if one.field == "data_digest" and one.compared]
    if shared is None or shared[1] or any(one.differing < one.compared for one in data):
        return False
    firsts = [one.first for one in data if one.first is not None]
    rows = [
        connection.execute(_LOSSES, {"optimizer": first.optimizer, "place": first.at}).fetchone()
        for first in firsts
    ]
    apart = [None if row is None else row[0] for row in rows]
    return all(one is not None and one <= max(tolerance, SAME_LOSS) for one in apart)
