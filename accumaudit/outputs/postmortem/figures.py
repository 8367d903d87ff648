"""Charts of a run as plotly's figures, in plain dicts: what draws them needs its script alone."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from accumaudit.outputs.kinds import KINDS, Kind
from accumaudit.outputs.words import printable

if TYPE_CHECKING:
    from accumaudit.postmortem.model import Curve, History

Figure = dict[str, Any]
"""`data` and `layout`, as plotly names them."""

PALETTES: Final[dict[str, dict[str, str]]] = {
    "light": {
        "text": "#1b1f26",
        "quiet": "#555e6d",
        "grid": "#e3e6eb",
        "raised": "#ffffff",
        "line-1": "#1a55a5",
        "line-2": "#c2500f",
        "expected": "#1d6b34",
        "fault": "#b3181d",
        "onset": "#875200",
        "suspect": "#b3181d",
        "launch": "#555e6d",
        "checkpoint": "#1d6b34",
        "skip": "#875200",
    },
    "dark": {
        "text": "#e7eaee",
        "quiet": "#a6b0be",
        "grid": "#2b323c",
        "raised": "#1e232b",
        "line-1": "#8ab8f5",
        "line-2": "#f29a5e",
        "expected": "#7fd196",
        "fault": "#ff8f8a",
        "onset": "#f0b75e",
        "suspect": "#ff8f8a",
        "launch": "#a6b0be",
        "checkpoint": "#7fd196",
        "skip": "#f0b75e",
    },
}
"""The colour of each role; a trace says its role in `meta`, a shape in `legendgroup`."""

LOGARITHMIC: Final = frozenset({"loss", "grad_norm_before", "grad_norm_after", "grad_scale"})
"""Fields that may lie powers of ten apart."""
FACTOR: Final = 100.0
"""From the lowest to the highest value, where their axis is logarithmic."""
TICKS: Final = 5
"""Powers of ten that are written beside such an axis, about."""
FEW: Final = 120
"""Points up to which each is a dot."""
FEW_PLACES: Final = 9
"""Of x, up to which each has its tick."""
PANEL: Final = 150
"""Pixels of a panel."""
EDGE: Final = {"l": 62, "r": 14, "t": 8, "b": 46}
"""Pixels beside the panels."""
TITLE: Final = 18
"""Of those below, the ones that what the axis counts takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a panel."""

    curve: Curve
    label: str
    colour: str = "line-1"
    dash: str = "solid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel: lines over the same axis."""

    title: str
    lines: tuple[Line, ...]
    expected: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An upright line through all panels."""

    x: float
    label: str
    role: str
    """fault, onset, suspect or launch."""


STYLES: Final = (("line-1", "solid"), ("line-2", "dash"))
"""The colour and the dash of the first and the second line of a panel."""
_MARKS: Final = {
    "fault": (2.0, "solid"),
    "onset": (2.0, "dash"),
    "suspect": (2.0, "dashdot"),
    "launch": (1.0, "dot"),
}
_SYMBOLS: Final = {"checkpoint": "triangle-up", "skip": "line-ns"}


def panels(history: History, kinds: Sequence[Kind] = KINDS) -> list[Panel]:
    """The panels of one optimizer: those of which anything is known."""
    return [panel for kind in kinds if (panel := _panel(history, kind)).lines]


def _panel(history: History, kind: Kind) -> Panel:
    known = [
        (history.curve(name), label, style) for (name, label), style in zip(kind.fields, STYLES, strict=False)
    ]
    lines = [
        Line(curve=curve, label=label, colour=colour, dash=dash)
        for curve, label, (colour, dash) in known
        if curve is not None
    ]
    return Panel(title=kind.title, lines=tuple(lines), expected=kind.expected)


def figure(
    shown: Sequence[Panel],
    marks: Sequence[Mark],
    axis: str,
    reach: tuple[float, float],
    *,
    height: int = PANEL,
) -> Figure:
    """The panels one above the other over one axis of x, which reaches from the first number to the last."""
    layout = _layout(axis, reach, EDGE["t"] + EDGE["b"] + height * len(shown))
    traces: list[dict[str, Any]] = []
    for at, panel in enumerate(shown):
        own = f"{at + 1}" if at else ""
        layout[f"yaxis{own}"] = _y_axis(panel, at, len(shown))
        traces += [_trace(line, own) for line in panel.lines]
        strange = sorted({x for line in panel.lines for x in line.curve.nonfinite})
        if strange:
            over = f"{len(shown) + at + 1}"
            layout[f"yaxis{over}"] = _overlay(own)
            traces.append(_not_finite(strange, over))
        if panel.expected is not None:
            layout["shapes"].append(_level(panel.expected, own))
    layout["xaxis"]["anchor"] = f"y{len(shown) if len(shown) > 1 else ''}"
    layout["shapes"] += [_upright(mark) for mark in marks]
    return {"data": traces, "layout": layout}


def events(history: History, marks: Sequence[Mark], reach: tuple[float, float]) -> Figure | None:
    """Where states were saved and attempts were skipped; None where neither was."""
    rows = {
        "skip": [(x, "skipped") for x in history.skipped],
        "checkpoint": [(x, f"checkpoint {name}".strip()) for x, name in history.checkpoints],
    }
    known = [role for role, places in rows.items() if places]
    if not known:
        return None
    layout = _layout(history.axis, reach, EDGE["t"] + EDGE["b"] + 28 * len(known))
    layout["yaxis"] = _axis() | {
        "range": [-0.5, len(known) - 0.5],
        "tickvals": list(range(len(known))),
        "ticktext": [{"skip": "skips", "checkpoint": "saved"}[role] for role in known],
        "fixedrange": True,
    }
    layout["shapes"] = [_upright(mark) for mark in marks]
    traces = [_markers(rows[role], role, height) for height, role in enumerate(known)]
    return {"data": traces, "layout": layout}


def is_logarithmic(panel: Panel) -> bool:
    """Whether the values lie so far apart that only powers of ten show all of them."""
    values = list(_finite(line.curve.y for line in panel.lines))
    if panel.lines[0].curve.name not in LOGARITHMIC or not values:
        return False
    return min(values) > 0 and max(values) / min(values) >= FACTOR


def _decades(panel: Panel) -> int:
    """Powers of ten between the lowest and the highest value."""
    values = list(_finite(line.curve.y for line in panel.lines))
    return math.ceil(math.log10(max(values)) - math.log10(min(values)))


def extent(curves: Iterable[Curve]) -> tuple[float, float]:
    """The first and the last x that is drawn, with a little room beside."""
    xs = [
        x
        for curve in curves
        for x in (*curve.x[:1], *curve.x[-1:], *curve.nonfinite[:1], *curve.nonfinite[-1:])
    ]
    low, high = min(xs, default=0.0), max(xs, default=1.0)
    room = max((high - low) * 0.01, 0.5)
    return low - room, high + room


def safe(text: str) -> str:
    """A text of a record for plotly, which would take some tags for its own."""
    return html.escape(printable(text), quote=False)


def _finite(rows: Iterable[Iterable[float | None]]) -> Iterator[float]:
    return (value for row in rows for value in row if value is not None and math.isfinite(value))


def _layout(axis: str, reach: tuple[float, float], height: int) -> dict[str, Any]:
    colours = PALETTES["light"]
    return {
        "height": height,
        "margin": dict(EDGE),
        "showlegend": False,
        "hovermode": "x",
        "dragmode": "zoom",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": 'system-ui, "Segoe UI", "DejaVu Sans", sans-serif', "size": 12} | _ink("quiet"),
        "hoverlabel": {"bgcolor": colours["raised"], "font": _ink("text"), "bordercolor": colours["quiet"]},
        "xaxis": _axis()
        | {
            "title": {"text": safe(axis), "standoff": 6},
            "range": list(reach),
            "tickformat": ",d",
            "hoverformat": ",d",
        }
        | ({"dtick": 1} if reach[1] - reach[0] < FEW_PLACES else {}),
        "shapes": [],
    }


def _ink(role: str) -> dict[str, str]:
    return {"color": PALETTES["light"][role]}


def _axis() -> dict[str, Any]:
    colours = PALETTES["light"]
    return {
        "gridcolor": colours["grid"],
        "linecolor": colours["quiet"],
        "zeroline": False,
        "showline": True,
        "ticks": "outside",
        "ticklen": 3,
        "tickcolor": colours["quiet"],
    }


def _y_axis(panel: Panel, at: int, count: int) -> dict[str, Any]:
    """The first panel stands at the top."""
    share = 1 / count
    gap = 0.12 * share if count > 1 else 0.0
    axis = _axis() | {"domain": [1 - (at + 1) * share + gap, 1 - at * share], "nticks": 5}
    if count > 1:
        axis["title"] = {"text": panel.title}
    if is_logarithmic(panel):
        return axis | {"type": "log", "exponentformat": "power", "dtick": -(-_decades(panel) // TICKS)}
    return axis | {"exponentformat": "power", "separatethousands": True}


def _trace(line: Line, axis: str) -> dict[str, Any]:
    alone = _lonely(line.curve.y)
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(line.curve.x) <= FEW or alone else "lines",
        "name": line.label,
        "x": _whole(line.curve.x),
        "y": [value if value is None or math.isfinite(value) else None for value in line.curve.y],
        "yaxis": f"y{axis}",
        "line": {"width": 1.6, "dash": line.dash} | _ink(line.colour),
        "marker": {"size": 4} | _ink(line.colour),
        "hovertemplate": f"{safe(line.label).replace('%', '&#37;')} %{{y:.6~g}}<extra></extra>",
        "meta": line.colour,
    }


def _lonely(values: Sequence[float | None]) -> bool:
    """Whether a known value stands between two gaps, where a line alone would not show it."""
    known = [False, *(value is not None for value in values), False]
    return any(known[at] and not known[at - 1] and not known[at + 1] for at in range(1, len(known) - 1))


def _whole(xs: Sequence[float]) -> list[float]:
    return [int(x) if float(x).is_integer() else x for x in xs]


def _overlay(base: str) -> dict[str, Any]:
    """An axis from 0 to 1 over a panel: what stands on it stays at the edge, whatever the panel's values."""
    return {"overlaying": f"y{base}", "range": [0, 1], "visible": False, "fixedrange": True}


def _not_finite(xs: Sequence[float], axis: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "not finite",
        "x": _whole(xs),
        "y": [0.95] * len(xs),
        "yaxis": f"y{axis}",
        "marker": {"size": 7, "symbol": "x"} | _ink("fault"),
        "hovertemplate": "not finite<extra></extra>",
        "meta": "fault",
    }


def _markers(places: Sequence[tuple[float, str]], role: str, height: int) -> dict[str, Any]:
    colour = PALETTES["light"][role]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": role,
        "x": _whole([x for x, _ in places]),
        "y": [height] * len(places),
        "text": [safe(text) for _, text in places],
        "marker": {
            "size": 9,
            "symbol": _SYMBOLS[role],
            "color": colour,
            "line": {"width": 1.5 if role == "skip" else 0, "color": colour},
        },
        "hovertemplate": "%{text}<extra></extra>",
        "meta": role,
    }


def _level(value: float, axis: str) -> dict[str, Any]:
    """What is right, across a panel."""
    return {
        "type": "line",
        "layer": "below",
        "xref": "x domain",
        "x0": 0,
        "x1": 1,
        "yref": f"y{axis}",
        "y0": value,
        "y1": value,
        "line": {"width": 1, "dash": "dot"} | _ink("expected"),
        "legendgroup": "expected",
    }


def _upright(mark: Mark) -> dict[str, Any]:
    width, dash = _MARKS[mark.role]
    return {
        "type": "line",
        "layer": "above",
        "name": safe(mark.label),
        "xref": "x",
        "x0": mark.x,
        "x1": mark.x,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"width": width, "dash": dash} | _ink(mark.role),
        "legendgroup": mark.role,
    }
