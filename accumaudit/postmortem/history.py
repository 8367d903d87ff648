"""Curves of a run for charts: a bounded number of points, chosen in the database, that keep every peak."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb

from accumaudit.engine.findings import RunReport
from accumaudit.postmortem.model import OPTIMIZERS, Curve, History, Moment

COLUMNS: Final = 1_500
"""Parts that a run is cut into; each curve keeps the lowest and the highest value of each."""

NEAR: Final = 300
"""Attempts before and after a marked moment of which every value is kept."""

MARKS: Final = 100
"""Launches and checkpoints that are shown, each; those nearest to the marked moments."""

AROUND: Final = 5
"""Distances on either side of one that tell what is usual there."""

DIGITS: Final = 7
"""Significant digits of what is drawn."""

SHARED: Final = 0.1
"""Where a larger share of the attempts has no update of its own, x counts attempts: a storm of skips would
stand on one point."""

LABELS: Final = {
    "loss": "loss",
    "learning_rate": "rate that was used",
    "scheduled_rate": "rate that the scheduler announced",
    "grad_norm_before": "gradient norm before clipping",
    "grad_norm_after": "gradient norm at the step",
    "grad_scale": "gradient scale",
    "valid_tokens": "valid tokens",
    "total_weight": "total weight",
    "equivalent_batch": "equivalent batch",
    "distortion_min": "lowest weight of a token",
    "distortion_max": "highest weight of a token",
    "microbatches": "micro-steps",
    "accumulation_steps": "micro-steps of a full window",
}
"""The fields that are drawn, as `Point` of the service calls them."""

NONFINITE: Final = ("loss", "grad_norm_before", "grad_norm_after")
"""Those of which a value that is none is told."""

_DRAWN: Final = f"""
CREATE OR REPLACE TEMP TABLE drawn AS
WITH announced AS (
    SELECT launch, optimizer, attempt_id + 1 AS attempt_id, any_value(scheduler_rate) AS scheduled_rate
    FROM updates WHERE run_id = $run AND scheduler_rate IS NOT NULL
    GROUP BY ALL HAVING min(scheduler_rate) = max(scheduler_rate)
),
broken AS (
    SELECT launch, optimizer, attempt_id,
           bool_or(loss_nonfinite OR (window_sums_nonfinite AND window_sums.loss IS NULL)) AS loss_measured,
           bool_or(reported_loss_nonfinite) AS loss_reported,
           bool_or(grad_norm_before_clip_nonfinite) AS grad_norm_before_nonfinite,
           bool_or(grad_norm_after_clip_nonfinite) AS grad_norm_after_nonfinite
    FROM updates
    WHERE run_id = $run AND applied IS NOT FALSE
      AND (loss_nonfinite OR window_sums_nonfinite OR reported_loss_nonfinite
           OR grad_norm_before_clip_nonfinite OR grad_norm_after_clip_nonfinite)
    GROUP BY ALL
),
measured AS (
    SELECT optimizer, count(loss) > 0 AS is_measured FROM windows WHERE run_id = $run GROUP BY optimizer
),
numbered AS (
    SELECT launch, optimizer, attempt_id, applied, if(m.is_measured, w.loss, w.reported_loss) AS loss,
           m.is_measured, learning_rate_max AS learning_rate, grad_norm_before_max AS grad_norm_before,
           grad_norm_max AS grad_norm_after,
           coalesce(grad_scale_max, CASE WHEN loss_scale_max <> 1 THEN loss_scale_max END) AS grad_scale,
           valid_tokens, total_weight, equivalent_batch, distortion_min, distortion_max, microbatches,
           accumulation_steps, if($foreign, attempt_id, optimizer_update_id) AS number,
           row_number() OVER in_order AS ordinal,
           coalesce(number >= lag(number) OVER in_order, number IS NOT NULL) AS goes_on,
           number IS DISTINCT FROM lag(number) OVER in_order AS is_new
    FROM windows w JOIN measured m USING (optimizer)
    WHERE run_id = $run
    WINDOW in_order AS (PARTITION BY optimizer ORDER BY launch, attempt_id)
),
axes AS (
    SELECT optimizer, bool_and(goes_on) AND count(*) FILTER (is_new) >= {1 - SHARED} * count(*) AS by_number
    FROM numbered GROUP BY optimizer
),
placed AS (
    SELECT * EXCLUDE (number, ordinal, goes_on, is_new), if(by_number, number, ordinal)::DOUBLE AS x
    FROM numbered JOIN axes USING (optimizer)
),
reaches AS (SELECT optimizer, min(x) AS low, max(x) - min(x) AS reach FROM placed GROUP BY optimizer)
SELECT p.* EXCLUDE (is_measured), a.scheduled_rate,
       b.loss_measured OR (b.loss_reported AND NOT is_measured) AS loss_nonfinite,
       b.grad_norm_before_nonfinite, b.grad_norm_after_nonfinite,
       floor((x - low) / nullif(reach, 0) * ($columns - 1))::BIGINT AS part
FROM placed p JOIN reaches USING (optimizer)
LEFT JOIN announced a USING (launch, optimizer, attempt_id)
LEFT JOIN broken b USING (launch, optimizer, attempt_id)
"""

_EXTREMES: Final = ", ".join(f"min({name}) AS low_{name}, max({name}) AS high_{name}" for name in LABELS)
_WHERE: Final = ", ".join(
    f"min(x) FILTER ({name} = low_{name}), any_value(low_{name}), "
    f"min(x) FILTER ({name} = high_{name}), any_value(high_{name})"
    for name in LABELS
)
# A minimum and its own place by one aggregate would be any of equal values: the order of threads decides.
_PEAKS: Final = f"""
WITH extremes AS (SELECT part, {_EXTREMES} FROM drawn WHERE optimizer = $optimizer GROUP BY part)
SELECT {_WHERE}
FROM (FROM drawn WHERE optimizer = $optimizer) JOIN extremes USING (part) GROUP BY part ORDER BY part
"""
_FLAGS: Final = {"skipped": "applied IS FALSE"} | {
    f"{name}_nonfinite": f"coalesce({name}_nonfinite, false)" for name in NONFINITE
}
_FLAGGED: Final = f"""
SELECT {", ".join(f"min(x) FILTER ({condition})" for condition in _FLAGS.values())}
FROM drawn WHERE optimizer = $optimizer GROUP BY part
"""
_NEAR_COLUMNS: Final = ("x", *_FLAGS, *LABELS)
_AIMED: Final = "SELECT unnest($launches::BIGINT[]) AS launch, unnest($attempts::BIGINT[]) AS attempt_id"
_NEAR: Final = f"""
WITH numbered AS (
    SELECT *, row_number() OVER (ORDER BY launch, attempt_id) AS place FROM drawn WHERE optimizer = $optimizer
),
aimed AS (
    SELECT n.place FROM numbered n JOIN ({_AIMED}) USING (launch, attempt_id)
)
SELECT x, {", ".join(_FLAGS.values())}, {", ".join(LABELS)}
FROM numbered n
WHERE $everything OR EXISTS (FROM aimed a WHERE n.place BETWEEN a.place - {NEAR} AND a.place + {NEAR})
ORDER BY place
"""
_PLACED: Final = f"""
SELECT launch, attempt_id, x FROM drawn JOIN ({_AIMED}) USING (launch, attempt_id)
WHERE optimizer = $optimizer
"""
_HEADS: Final = """
SELECT optimizer, count(*), any_value(by_number), min(x), max(x) FROM drawn
GROUP BY optimizer ORDER BY optimizer LIMIT $most
"""
_LAUNCHES: Final = """
SELECT min(d.x), d.launch, any_value(r.resumed_from_update)
FROM (FROM drawn WHERE optimizer = $optimizer) d
LEFT JOIN (
    SELECT launch, max(resumed_from_update) AS resumed_from_update
    FROM runs WHERE run_id = $run GROUP BY launch
) r USING (launch)
GROUP BY d.launch QUALIFY d.launch > min(d.launch) OVER () ORDER BY d.launch
"""
# A checkpoint that is for all optimizers counts the attempts of the first. What a later launch did again is
# not drawn, nor is a checkpoint of it.
_CHECKPOINTS: Final = """
WITH saved AS (
    SELECT DISTINCT launch, attempt_id, coalesce(name, '') AS name FROM marks
    WHERE run_id = $run AND kind = 'checkpoint' AND attempt_id > 0
      AND coalesce(optimizer, $first) = $optimizer
),
ends AS (
    SELECT launch, max(attempt_id) + coalesce(any_value(every), 1) - 1 AS last_attempt
    FROM drawn LEFT JOIN (
        SELECT launch, max(recorded_every) AS every FROM runs WHERE run_id = $run GROUP BY launch
    ) USING (launch)
    WHERE optimizer = $optimizer GROUP BY launch
)
SELECT d.x, s.name
FROM saved s JOIN ends e ON e.launch = s.launch AND s.attempt_id <= e.last_attempt
ASOF JOIN (FROM drawn WHERE optimizer = $optimizer) d
    ON d.launch = s.launch AND d.attempt_id <= s.attempt_id
ORDER BY s.launch, s.attempt_id, s.name
"""
_OPTIMIZERS: Final = """
SELECT o."index", o."name", o."class"
FROM (SELECT unnest(optimizers) AS o FROM runs WHERE run_id = $run ORDER BY launch DESC, rank)
"""

Point = tuple[float, float | None]
Note = tuple[float, str]


def histories(
    connection: duckdb.DuckDBPyConnection, run: RunReport, marked: Sequence[Moment]
) -> tuple[History, ...]:
    """The history of each optimizer of a run; beside the marked moments every attempt is in it."""
    columns = _columns(connection, run)
    values = {"run": run.run_id, "foreign": run.is_foreign, "columns": columns}
    connection.execute(_DRAWN, values)
    try:
        heads = connection.execute(_HEADS, {"most": OPTIMIZERS}).fetchall()
        titles = _titles(connection, run)
        return tuple(
            _Reading(connection, run, head, columns, heads[0][0]).history(
                titles.get(head[0]) or f"optimizer {head[0]}",
                [one for one in marked if one.optimizer == head[0]],
            )
            for head in heads
        )
    finally:
        connection.execute("DROP TABLE drawn")


def _columns(connection: duckdb.DuckDBPyConnection, run: RunReport) -> int:
    """Parts of each history: fewer where several optimizers are drawn."""
    ((optimizers,),) = connection.execute(
        "SELECT count(DISTINCT optimizer) FROM windows WHERE run_id = $1", [run.run_id]
    ).fetchall()
    drawn: int = min(optimizers, OPTIMIZERS)
    return COLUMNS // max(1, drawn - 1)


def _titles(connection: duckdb.DuckDBPyConnection, run: RunReport) -> dict[int, str]:
    """What each optimizer is called, by the last launch that names it."""
    rows = connection.execute(_OPTIMIZERS, {"run": run.run_id}).fetchall()
    several = len({index for index, _, _ in rows}) > 1
    titles: dict[int, str] = {}
    for index, name, kind in rows:
        title = kind or "an optimizer"
        if name not in (None, "", f"optimizer {index}"):
            title += f" ({name})"
        titles.setdefault(index, f"optimizer {index}, {title}" if several else title)
    return titles


@dataclass(frozen=True, slots=True)
class _Known:
    """A value of a curve."""

    x: float
    y: float
    every: bool
    """All attempts beside it are known to the curve."""


class _Reading:
    """Reads the history of one optimizer out of the table of what is drawn."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        run: RunReport,
        head: tuple[int, int, bool, float, float],
        columns: int,
        first: int,
    ) -> None:
        self._connection = connection
        self._run = run
        self._optimizer, self._attempts, self._by_number, low, high = head
        self._width = (high - low) / columns
        self._is_short = self._attempts <= 2 * columns
        self._first = first
        """The first optimizer of the run."""

    def history(self, title: str, marked: Sequence[Moment]) -> History:
        places = self._places(marked)
        stops = [x for _, x in places]
        beside = self._beside(marked)
        skipped, *nonfinite = self._flagged(beside)
        return History(
            optimizer=self._optimizer,
            title=title,
            axis=("step" if self._run.is_foreign else "update") if self._by_number else "attempt",
            attempts=self._attempts,
            curves=tuple(self._curves(beside, dict(zip(NONFINITE, nonfinite, strict=True)))),
            skipped=skipped,
            launches=_nearest(self._launches(), stops),
            checkpoints=_nearest(self._checkpoints(), stops),
            places=places,
        )

    def _rows(self, query: str, **more: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, {"optimizer": self._optimizer, **more}).fetchall()

    def _places(self, marked: Sequence[Moment]) -> tuple[tuple[Moment, float], ...]:
        found = {(launch, attempt): x for launch, attempt, x in self._rows(_PLACED, **_keys(marked))}
        keyed = ((one, found.get((one.launch, one.attempt_id))) for one in marked)
        return tuple((one, x) for one, x in keyed if x is not None)

    def _beside(self, marked: Sequence[Moment]) -> list[dict[str, Any]]:
        """Every attempt near a marked moment, in their order; all of a short run."""
        rows = self._rows(_NEAR, everything=self._is_short, **_keys(marked))
        return [dict(zip(_NEAR_COLUMNS, row, strict=True)) for row in rows]

    def _flagged(self, beside: Sequence[dict[str, Any]]) -> list[tuple[float, ...]]:
        """Where attempts were skipped, and where each field that may be none is none."""
        columns = list(zip(*self._rows(_FLAGGED), strict=True))
        return [
            tuple(sorted({x for x in column if x is not None} | {row["x"] for row in beside if row[flag]}))
            for column, flag in zip(columns, _FLAGS, strict=True)
        ]

    def _curves(
        self, beside: Sequence[dict[str, Any]], nonfinite: dict[str, tuple[float, ...]]
    ) -> Iterator[Curve]:
        """The fields of which anything is known."""
        peaks = self._rows(_PEAKS)
        near = {row["x"] for row in beside}
        for place, (name, label) in enumerate(LABELS.items()):
            known = [
                _Known(x, y, every=False)
                for row in peaks
                for x, y in (row[4 * place : 4 * place + 2], row[4 * place + 2 : 4 * place + 4])
                if x is not None and x not in near and math.isfinite(y)
            ]
            known += [
                _Known(row["x"], row[name], every=True)
                for row in beside
                if row[name] is not None and math.isfinite(row[name])
            ]
            broken = nonfinite.get(name, ())
            if known or broken:
                points = list(_without_repeats(_with_gaps(sorted(known, key=lambda one: one.x), self._width)))
                yield Curve(
                    name=name,
                    label=label,
                    x=tuple(x for x, _ in points),
                    y=tuple(y for _, y in points),
                    nonfinite=broken,
                )

    def _launches(self) -> list[Note]:
        return [
            (x, f"launch {launch}" + ("" if update is None else f", resumed from update {update}"))
            for x, launch, update in self._rows(_LAUNCHES, run=self._run.run_id)
        ]

    def _checkpoints(self) -> list[Note]:
        rows = self._rows(_CHECKPOINTS, run=self._run.run_id, first=self._first)
        return [(x, name) for x, name in rows]


def _keys(moments: Sequence[Moment]) -> dict[str, object]:
    return {
        "launches": [one.launch for one in moments],
        "attempts": [one.attempt_id for one in moments],
    }


def _nearest(notes: Sequence[Note], stops: Sequence[float]) -> tuple[Note, ...]:
    """No more than MARKS, in order: the last before each stop and those nearest to it; else the earliest."""
    last_before = {max((at for at, (x, _) in enumerate(notes) if x <= stop), default=0) for stop in stops}

    def distance(place: int) -> tuple[float, int]:
        x = notes[place][0]
        away = 0.0 if place in last_before else min((abs(stop - x) for stop in stops), default=0.0)
        return away, place

    chosen = sorted(range(len(notes)), key=distance)[:MARKS]
    return tuple(notes[place] for place in sorted(chosen))


def _with_gaps(known: Sequence[_Known], width: float) -> Iterator[Point]:
    """Rounded points in order of x, and a gap where the distances around say that some are missing."""
    distances = [after.x - before.x for before, after in itertools.pairwise(known)]
    for place, one in enumerate(known):
        yield one.x, _rounded(one.y)
        if place == len(distances):
            return
        usual = statistics.median(distances[max(0, place - AROUND) : place + AROUND + 1])
        most = 1.5 * max(usual, 1.0)
        if not (one.every and known[place + 1].every):
            most = max(most, 2 * width)
        if distances[place] > most:
            yield one.x + distances[place] / 2, None


def _without_repeats(points: Iterable[Point]) -> Iterator[Point]:
    """The points without those in the midst of a level line."""
    before: Point | None = None
    held: Point | None = None
    for point in points:
        if held is not None and not (before is not None and before[1] == held[1] == point[1]):
            yield held
            before = held
        held = point
    if held is not None:
        yield held


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
