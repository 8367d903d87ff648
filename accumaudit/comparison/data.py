"""Whether digests of two runs tell their data apart, and how much of the one's data the other saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import duckdb

from accumaudit.comparison.model import FieldResult
from accumaudit.comparison.sides import Facts

DIGESTS: Final = ("data_digest", "data_order")

SAME_LOSS: Final = 1e-5
"""Relative difference of two losses up to which they may be of the same data on other hardware."""

OTHER_KIND: Final = (
    "every digest differs though the loss is the same at the first place: the inputs may be of another "
    "integer type, or lie on another kind of device, whose digests do not compare"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Of two runs whose digests differ: how far they meet elsewhere."""

    of_first: int
    """Different micro-batches in the record of the first run."""
    by_second: int
    """How many of them stand in the record of the second, anywhere."""
    proven: bool
    """The data differ, and not their digests alone: these were made in one way, or the samples differ too."""


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
    connection: duckdb.DuckDBPyConnection,
    run_ids: tuple[str, str],
    facts: tuple[Facts, Facts],
    fields: Sequence[FieldResult],
) -> Seen | None:
    """How far the data meet; None where no digest differs."""
    places = _places(fields, "data_digest")
    if not places:
        return None
    row = connection.execute(_SEEN, {"a": run_ids[0], "b": run_ids[1]}).fetchone()
    assert row is not None
    other_samples = bool(places & _places(fields, "samples"))
    proven = bool(row[1]) or other_samples or all(one.on_cpu for one in facts)
    return Seen(of_first=int(row[0]), by_second=int(row[1]), proven=proven)


def _places(fields: Sequence[FieldResult], name: str) -> set[tuple[int, float]]:
    """Where a field differs first, by optimizer."""
    return {(one.optimizer, one.first.at) for one in fields if one.field == name and one.first is not None}


def of_other_kinds(
    connection: duckdb.DuckDBPyConnection,
    fields: Sequence[FieldResult],
    shared: Seen | None,
    tolerance: float,
) -> bool:
    """Whether all digests differ where the losses say that the data may be the same."""
    data = [one for one in fields if one.field == "data_digest" and one.compared]
    if shared is None or shared.by_second or any(one.differing < one.compared for one in data):
        return False
    firsts = [one.first for one in data if one.first is not None]
    rows = [
        connection.execute(_LOSSES, {"optimizer": first.optimizer, "place": first.at}).fetchone()
        for first in firsts
    ]
    apart = [None if row is None else row[0] for row in rows]
    near = SAME_LOSS if shared.proven else max(tolerance, SAME_LOSS)
    return all(one is not None and one <= near for one in apart)
