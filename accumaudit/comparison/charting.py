"""Adds to a comparison the curves of both runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from accumaudit.engine.findings import RunReport
from accumaudit.postmortem.history import histories

if TYPE_CHECKING:
    import duckdb

    from accumaudit.comparison.model import Comparison, Side
    from accumaudit.postmortem.model import History, Moment


def with_histories(connection: duckdb.DuckDBPyConnection, comparison: Comparison) -> Comparison:
    """The comparison with what charts draw, every attempt near the first difference included."""
    first = comparison.first
    a, b = (
        _drawn(connection, side, None if first is None else first.moments[place])
        for place, side in enumerate(comparison.sides)
    )
    return replace(comparison, histories=(a, b))


def _drawn(connection: duckdb.DuckDBPyConnection, side: Side, moment: Moment | None) -> tuple[History, ...]:
    return histories(connection, _unjudged(side), [] if moment is None else [moment])


def _unjudged(side: Side) -> RunReport:
    """The run, of which no rule was asked."""
    return RunReport(
        run_id=side.run_id,
        path=side.path,
        format=side.format,
        title=side.format,
        runtime=None,
        ranks=(),
        world_size=side.world_size,
        updates=side.updates,
        attempts=side.attempts,
        recorded=side.attempts,
        recorded_ranks=None,
        skipped=side.attempts - side.updates,
        verdicts=(),
        unreadable=(),
        remarks=(),
        holes=(),
    )
