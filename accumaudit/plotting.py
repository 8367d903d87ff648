"""Charts for notebooks, drawn by plotly: fields above each other over one axis, and where findings begin."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Literal

import duckdb

from accumaudit.engine.findings import RunReport
from accumaudit.nearest import nearest
from accumaudit.outputs.kinds import KINDS
from accumaudit.outputs.postmortem import figures
from accumaudit.outputs.postmortem.figures import PALETTES, Line, Mark, Panel, safe
from accumaudit.postmortem.history import histories
from accumaudit.postmortem.model import Curve, History

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Axis = Literal["update", "tokens"]
"""What a run is drawn over; a log that counts no updates is drawn over what it counts."""

COLUMNS: Final = 1_500
"""Stretches of a table's rows: of each the lowest and the highest value are drawn."""

TOP: Final = 96
"""Pixels above the charts: a title, the codes of findings and the first chart's name."""
SHIFT: Final = 16
"""Pixels between the first chart and the codes."""
LINE: Final = 13
"""Pixels between two lines of codes: those of neighbours stand on lines of their own."""
_ROLES: Final = {"error": "fault", "warning": "onset", "note": "launch"}
"""How a finding's line is drawn, by its severity."""

_ROWS: Final = """
WITH numbered AS (
    SELECT row_number() OVER () - 1 AS place, x, if(isfinite(y), y, NULL) AS y
    FROM (SELECT {x}::DOUBLE AS x, {y}::DOUBLE AS y FROM ({rows}))
),
kept AS (
    SELECT unnest([arg_min(place, y), arg_max(place, y), min(place) FILTER (y IS NULL)]) AS place
    FROM numbered GROUP BY place // greatest((SELECT count(*) // $columns FROM numbered), 1)
)
SELECT x, y FROM numbered WHERE place IN (FROM kept) ORDER BY place
"""
_PLACES: Final = """
SELECT launch, attempt_id, if($foreign, attempt_id, optimizer_update_id) AS number,
       row_number() OVER so_far AS ordinal,
       sum(if(applied IS FALSE, 0, valid_tokens)) OVER so_far AS tokens,
       count(CASE WHEN follows_a_gap OR (applied IS NOT FALSE AND valid_tokens IS NULL) THEN 1 END)
           OVER so_far AS unknown
FROM (
    SELECT *, attempt_id > 1 + lag(attempt_id, 1, 0) OVER (PARTITION BY launch ORDER BY attempt_id)
           AS follows_a_gap
    FROM windows WHERE run_id = $run AND optimizer = $optimizer
)
WINDOW so_far AS (ORDER BY launch, attempt_id ROWS UNBOUNDED PRECEDING)
"""
_TOKENS: Final = f"""
SELECT x, max(tokens), max(unknown)
FROM (SELECT if($axis = 'attempt', ordinal, number)::DOUBLE AS x, tokens, unknown FROM ({_PLACES}))
WHERE x IN (SELECT unnest($places)) GROUP BY x
"""
_BEGINNINGS: Final = f"""
SELECT if($axis = 'attempt', ordinal, number)::DOUBLE AS x, code, severity, name
FROM (
    SELECT launch, attempt_id, code, name, severity FROM findings
    WHERE run_id = $run AND optimizer = $optimizer AND attempt_id IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY code ORDER BY launch, attempt_id) = 1
) JOIN ({_PLACES}) USING (launch, attempt_id) ORDER BY x, code
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Where a finding or a later launch begins."""

    x: float
    label: str
    explained: str
    """What is said where the pointer rests on the label."""
    role: str
    """How its line is drawn: as a mark of this role."""


def table_figure(connection: duckdb.DuckDBPyConnection, rows: str, x: str, ys: Sequence[str]) -> Figure:
    """Columns of a query's rows, each a chart of its own, over another column."""
    made = _figure_class("Table.plot()")
    kinds = {name: str(kind) for name, kind, *_ in connection.execute(f"DESCRIBE {rows}").fetchall()}
    for name in (x, *ys):
        _require_number(name, kinds)
    if not ys:
        raise ValueError("name at least one column to plot")
    curves = [_column(connection, rows, x, y) for y in ys]
    shown = [Panel(title=curve.label, lines=(Line(curve=curve, label=curve.label),)) for curve in curves]
    drawn = _drawn(shown, (), x)
    drawn["layout"]["xaxis"] |= {"tickformat": None, "hoverformat": None}
    return made(drawn)


def run_figure(
    connection: duckdb.DuckDBPyConnection, run: RunReport, fields: Sequence[str], optimizer: int, axis: Axis
) -> Figure:
    """Fields of one optimizer over a run whose findings are in the table of that name."""
    made = _figure_class("Ledger.plot()")
    if axis not in ("update", "tokens"):
        raise ValueError(f"x is 'update' or 'tokens', not {axis!r}")
    history = _history(histories(connection, run, ()), run, optimizer)
    history = replace(history, curves=_chosen(history, fields))
    named = {"run": run.run_id, "foreign": run.is_foreign, "optimizer": optimizer, "axis": history.axis}
    begins = _beginnings(connection, named, history)
    if axis == "tokens":
        history, begins = _over_tokens(connection, named, history, begins)
    drawn = _drawn(figures.panels(history), begins, history.axis)
    drawn["layout"]["title"] = {"text": safe(run.run_id)}
    return made(drawn)


def _figure_class(what: str) -> type[Figure]:
    try:
        found: type[Figure] = importlib.import_module("plotly.graph_objects").Figure
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"{what} needs plotly, which is not installed: pip install 'accumaudit[report]'", name="plotly"
        ) from None
    return found


def _column(connection: duckdb.DuckDBPyConnection, rows: str, x: str, y: str) -> Curve:
    query = _ROWS.format(x=_quoted(x), y=_quoted(y), rows=rows)
    points = connection.execute(query, {"columns": COLUMNS}).fetchall()
    return Curve(name=y, label=y, x=tuple(at for at, _ in points), y=tuple(value for _, value in points))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _require_number(name: str, kinds: dict[str, str]) -> None:
    if name not in kinds:
        raise KeyError(f"no column is called {name!r}{nearest(name, kinds)}")
    numeric = ("INT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL", "BOOLEAN")
    if kinds[name].endswith("]") or not any(word in kinds[name] for word in numeric):
        raise ValueError(f"the column {name!r} holds {kinds[name]}, which is no number")


def _history(found: Sequence[History], run: RunReport, optimizer: int) -> History:
    by_number = {one.optimizer: one for one in found}
    if optimizer not in by_number:
        known = f", but of {', '.join(map(str, by_number))}" if by_number else ""
        raise ValueError(f"{run.run_id} has no attempt of optimizer {optimizer}{known}")
    return by_number[optimizer]


def _chosen(history: History, fields: Sequence[str]) -> tuple[Curve, ...]:
    """The curves of these names; of a chart's, without names."""
    drawn = {name for kind in KINDS for name, _ in kind.fields}
    known = {curve.name: curve for curve in history.curves if curve.name in drawn}
    for name in fields:
        if name not in known:
            raise ValueError(f"nothing is known of a field {name!r}{nearest(name, known)}")
    return tuple(known[name] for name in fields or known)


def _beginnings(
    connection: duckdb.DuckDBPyConnection, named: dict[str, Any], history: History
) -> list[Beginning]:
    """Where each finding and each later launch begins, in the order of x."""
    found = [Beginning(x=at, label="launch", explained=text, role="launch") for at, text in history.launches]
    for at, code, severity, name in connection.execute(_BEGINNINGS, named).fetchall():
        explained = f"{severity} {code} {name}"
        found.append(Beginning(x=at, label=code, explained=explained, role=_ROLES[severity]))
    return sorted(found, key=lambda one: (one.x, one.label))


def _over_tokens(
    connection: duckdb.DuckDBPyConnection, named: dict[str, Any], history: History, begins: list[Beginning]
) -> tuple[History, list[Beginning]]:
    """The same over the valid tokens of all updates up to and with each."""
    places = {one.x for one in begins}.union(*((*curve.x, *curve.nonfinite) for curve in history.curves))
    rows = connection.execute(_TOKENS, {**named, "places": sorted(places)}).fetchall()
    if any(tokens is None or unknown for _, tokens, unknown in rows):
        raise ValueError("the valid tokens of some updates are unknown: plot over x='update'")
    tokens = {at: float(count) for at, count, _ in rows}
    curves = tuple(
        replace(
            curve,
            x=tuple(tokens[at] for at in curve.x),
            nonfinite=tuple(tokens[at] for at in curve.nonfinite),
        )
        for curve in history.curves
    )
    moved = replace(history, axis="valid tokens", curves=curves)
    return moved, [replace(one, x=tokens[one.x]) for one in begins]


def _drawn(shown: Sequence[Panel], begins: Sequence[Beginning], axis: str) -> dict[str, Any]:
    """The figure on a ground of its own, which light and dark notebooks both show as it is."""
    marks = [Mark(x=one.x, label=one.label, role=one.role) for one in begins]
    xs = [x for panel in shown for line in panel.lines for x in (*line.curve.x, *line.curve.nonfinite)]
    low, high = min(xs, default=0.0), max(xs, default=1.0)
    room = (high - low) * 0.01 or 0.5
    drawn = figures.figure(shown, marks, axis, (low - room, high + room))
    layout = drawn["layout"]
    layout |= {"paper_bgcolor": "#ffffff", "plot_bgcolor": "#ffffff"}
    layout["margin"]["t"] = TOP
    layout["height"] += TOP
    layout["annotations"] = [*_titles(shown, layout), *_labels(begins)]
    return drawn


def _titles(shown: Sequence[Panel], layout: dict[str, Any]) -> list[dict[str, Any]]:
    """What each chart shows, above it, in the colours of its lines."""
    found = []
    for row, panel in enumerate(shown):
        axis = layout[f"yaxis{row + 1 if row else ''}"]
        axis.pop("title", None)
        text = f"<b>{safe(panel.title)}</b>"
        if [line.label.lower() for line in panel.lines] != [panel.title.lower()]:
            text += "".join(
                f' <span style="color: {PALETTES["light"][line.colour]}">{safe(line.label)}</span>'
                for line in panel.lines
            )
        place = {"x": 0, "xref": "paper", "xanchor": "left", "y": axis["domain"][1], "yref": "paper"}
        found.append({**place, "yanchor": "bottom", "showarrow": False, "text": text})
    return found


def _labels(begins: Sequence[Beginning]) -> list[dict[str, Any]]:
    """What begins at one place, above the charts."""
    found = []
    for place, (at, here) in enumerate(groupby(begins, key=lambda one: one.x)):
        group = list(here)
        label = ", ".join(safe(one.label) for one in group)
        explained = "<br>".join(safe(one.explained) for one in group)
        above = {"x": at, "y": 1, "yref": "paper", "yanchor": "bottom", "yshift": SHIFT + place % 3 * LINE}
        found.append({**above, "showarrow": False, "text": label, "hovertext": explained})
    return found
