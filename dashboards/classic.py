"""Builds dashboards in Grafana's classic model, which every version imports, as plain dicts."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Json: TypeAlias = dict[str, Any]

DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
"""The one that is chosen at the top of the page: no file names a data source of its own."""

SCHEMA_VERSION: Final = 39
PLUGIN_VERSION: Final = "10.4.0"
COLUMNS: Final = 24
TAG: Final = "accumaudit"


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a panel; words like `@run` in its text stand for the board's matchers of labels."""

    text: str
    legend: str = "__auto"
    dashed: bool = False
    """What the others are to be compared with."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the value of a query, or a label of one's series."""

    title: str
    query: str | None = None
    label: str | None = None
    """Shown in place of the value; without a query, of another column's."""
    unit: str = "none"
    custom: Mapping[str, Any] | None = None
    """More of the field's configuration."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the page and its panels, laid out from left to right."""

    title: str
    panels: Sequence[Json]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of the page: values of a label."""

    name: str
    title: str
    values: str
    several: bool = False
    """Any number of them can be chosen."""
    or_all: bool = False
    """All are shown until some are chosen, and series that have no such label too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A dashboard before it is laid out."""

    uid: str
    title: str
    description: str
    variables: Sequence[Variable]
    matchers: Mapping[str, str]
    """What words like `@run` stand for in queries and variables."""
    rows: Sequence[Row]
    annotations: Sequence[Json] = ()


def chart(title: str, description: str, unit: str, *queries: Query, width: int = 8, **custom: Any) -> Json:
    """Lines over time; `custom` says how they are drawn."""
    drawn = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 0, "showPoints": "never", "spanNulls": False}
    panel = _panel("timeseries", title, description, unit, width, 8)
    panel["fieldConfig"]["defaults"] |= {"color": {"mode": "palette-classic"}, "custom": drawn | custom}
    panel["fieldConfig"]["overrides"] = [_dashed(ref) for ref, one in _lettered(queries) if one.dashed]
    panel["options"] = {
        "legend": _legend("table", "lastNotNull"),
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    panel["targets"] = [_target(ref, one, "time_series") for ref, one in _lettered(queries)]
    return panel


def stat(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    width: int = 4,
    steps: Sequence[tuple[float | None, str]] = ((None, "text"),),
    field: str = "",
) -> Json:
    """Numbers as they are now, in the colour of the highest of `steps` that they reach.

    `field` names a label to be shown in place of the number.
    """
    panel = _panel("stat", title, description, unit, width, 4)
    panel["fieldConfig"]["defaults"]["thresholds"] = _thresholds(steps)
    panel["fieldConfig"]["defaults"]["color"] = {"mode": "thresholds"}
    panel["options"] = {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": _reduced(f"/^{field}$/" if field else ""),
        "textMode": "auto",
        "wideLayout": True,
    }
    kind = "table" if field else "time_series"
    panel["targets"] = [_target(ref, one, kind, instant=True) for ref, one in _lettered(queries)]
    return panel


def timeline(title: str, description: str, query: Query, colors: Mapping[int, tuple[str, str]]) -> Json:
    """States over time; `colors` has the word and the colour of each value."""
    panel = _panel("state-timeline", title, description, "none", COLUMNS, 8)
    words = {
        str(value): {"color": color, "index": place, "text": word}
        for place, (value, (word, color)) in enumerate(colors.items())
    }
    panel["fieldConfig"]["defaults"] |= {
        "color": {"mode": "thresholds"},
        "custom": {"fillOpacity": 70, "lineWidth": 0},
        "mappings": [{"type": "value", "options": words}],
    }
    panel["options"] = {
        "alignValue": "left",
        "legend": _legend("list") | {"showLegend": False},
        "mergeValues": True,
        "rowHeight": 0.8,
        "showValue": "auto",
        "tooltip": {"mode": "single", "sort": "none"},
    }
    panel["targets"] = [_target("A", query, "time_series")]
    return panel


def table(title: str, description: str, *columns: Column, sort: str, width: int = COLUMNS) -> Json:
    """A row for each set of labels that the columns' queries share, the highest of column `sort` first."""
    panel = _panel("table", title, description, "none", width, 8)
    asked = list(_lettered([Query(one.query) for one in columns if one.query is not None]))
    refs = iter(ref for ref, _ in asked)
    # A query's value is a field of its own name where there are several queries.
    values = [
        ("Value" if len(asked) == 1 else f"Value #{next(refs)}") if one.query else "" for one in columns
    ]
    fields = {one.label or value: one for one, value in zip(columns, values, strict=True)}
    panel["fieldConfig"]["defaults"]["custom"] = {"align": "auto", "cellOptions": {"type": "auto"}}
    panel["fieldConfig"]["overrides"] = [
        _override("byName", one.title, {"unit": one.unit, **(one.custom or {})}) for one in columns
    ]
    panel["options"] = {
        "cellHeight": "sm",
        "footer": {"countRows": False, "fields": "", "reducer": ["sum"], "show": False},
        "showHeader": True,
        "sortBy": [{"desc": True, "displayName": sort}],
    }
    panel["targets"] = [_target(ref, one, "table", instant=True) for ref, one in asked]
    panel["transformations"] = [
        {"id": "merge", "options": {}},
        {"id": "filterFieldsByName", "options": {"include": {"names": list(fields)}}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {},
                "indexByName": {field: place for place, field in enumerate(fields)},
                "renameByName": {field: one.title for field, one in fields.items()},
            },
        },
    ]
    return panel


def colored(words: Mapping[str, str]) -> Json:
    """The colours of words in a column of a table."""
    colors = {word: {"color": color, "index": place} for place, (word, color) in enumerate(words.items())}
    return {
        "mappings": [{"type": "value", "options": colors}],
        "custom.cellOptions": {"type": "color-text"},
    }


def reaching(color: str) -> Json:
    """The colour of numbers from 1 on in a column of a table."""
    return {
        "thresholds": _thresholds(((None, "text"), (1, color))),
        "custom.cellOptions": {"type": "color-text"},
    }


def link(title: str, url: str) -> Json:
    """What a cell of a table leads to."""
    return {"links": [{"title": title, "url": url, "targetBlank": False}]}


def annotation(name: str, text: str, color: str, title: str) -> Json:
    """Marks on every chart where a query has a value."""
    return {
        "datasource": DATASOURCE,
        "enable": True,
        "expr": text,
        "hide": False,
        "iconColor": color,
        "name": name,
        "titleFormat": title,
    }


def built(board: Board) -> Json:
    """The dashboard as Grafana reads it."""
    made = {
        "annotations": {"list": [_OWN_ANNOTATIONS, *board.annotations]},
        "description": board.description,
        "editable": False,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "id": None,
        "links": [_LINKS],
        "panels": list(_laid_out(board.rows)),
        "refresh": "30s",
        "schemaVersion": SCHEMA_VERSION,
        "tags": [TAG],
        "templating": {"list": [_DATASOURCE_VARIABLE, *map(_variable, board.variables)]},
        "time": {"from": "now-6h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "title": board.title,
        "uid": board.uid,
        "version": 1,
        "weekStart": "",
    }
    return {name: _with_matchers(part, board.matchers) for name, part in made.items()}


_OWN_ANNOTATIONS: Final = {
    "builtIn": 1,
    "datasource": {"type": "grafana", "uid": "-- Grafana --"},
    "enable": True,
    "hide": True,
    "iconColor": "rgba(0, 211, 255, 1)",
    "name": "Annotations & Alerts",
    "type": "dashboard",
}
_LINKS: Final = {
    "asDropdown": False,
    "icon": "external link",
    "includeVars": True,
    "keepTime": True,
    "tags": [TAG],
    "targetBlank": False,
    "title": "accumaudit",
    "tooltip": "",
    "type": "dashboards",
    "url": "",
}
_DATASOURCE_VARIABLE: Final = {
    "hide": 0,
    "includeAll": False,
    "label": "Data source",
    "multi": False,
    "name": "datasource",
    "options": [],
    "query": "prometheus",
    "refresh": 1,
    "regex": "",
    "skipUrlSync": False,
    "type": "datasource",
}


def _variable(variable: Variable) -> Json:
    made = {
        "datasource": DATASOURCE,
        "hide": 0,
        "includeAll": variable.or_all,
        "label": variable.title,
        "multi": variable.several,
        "name": variable.name,
        "options": [],
        "query": variable.values,
        "refresh": 2,
        "regex": "",
        "skipUrlSync": False,
        "sort": 7,  # run-2 before run-10
        "type": "query",
    }
    return made | {"allValue": ".*"} if variable.or_all else made


def _panel(kind: str, title: str, description: str, unit: str, width: int, height: int) -> Json:
    return {
        "datasource": DATASOURCE,
        "description": description,
        "fieldConfig": {
            "defaults": {"mappings": [], "thresholds": _thresholds(((None, "text"),)), "unit": unit},
            "overrides": [],
        },
        "gridPos": {"h": height, "w": width, "x": 0, "y": 0},
        "pluginVersion": PLUGIN_VERSION,
        "title": title,
        "type": kind,
    }


def _thresholds(steps: Sequence[tuple[float | None, str]]) -> Json:
    return {"mode": "absolute", "steps": [{"color": color, "value": value} for value, color in steps]}


def _legend(mode: str, *numbers: str) -> Json:
    return {"calcs": list(numbers), "displayMode": mode, "placement": "bottom", "showLegend": True}


def _reduced(fields: str) -> Json:
    """The last value of each field that is shown."""
    return {"calcs": ["lastNotNull"], "fields": fields, "values": False}


def _lettered(queries: Sequence[Query]) -> Iterator[tuple[str, Query]]:
    return zip(string.ascii_uppercase, queries, strict=False)


def _target(ref: str, query: Query, kind: str, instant: bool = False) -> Json:
    return {
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.text,
        "format": kind,
        "instant": instant,
        "legendFormat": query.legend,
        "range": not instant,
        "refId": ref,
    }


def _override(matcher: str, what: str, properties: Mapping[str, Any]) -> Json:
    return {
        "matcher": {"id": matcher, "options": what},
        "properties": [{"id": name, "value": value} for name, value in properties.items()],
    }


def _dashed(ref: str) -> Json:
    style = {"fill": "dash", "dash": [6, 6]}
    return _override("byFrameRefID", ref, {"custom.lineStyle": style})


def _laid_out(rows: Sequence[Row]) -> Iterator[Json]:
    """The panels of all rows with their numbers and places; what does not fit goes to the next line."""
    number, top = 0, 0
    for row in rows:
        number += 1
        head = {"collapsed": False, "id": number, "panels": [], "title": row.title, "type": "row"}
        yield head | {"gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": top}}
        left, top, line = 0, top + 1, 0
        for panel in row.panels:
            number += 1
            size = panel["gridPos"]
            if left + size["w"] > COLUMNS:
                left, top, line = 0, top + line, 0
            yield panel | {"id": number, "gridPos": size | {"x": left, "y": top}}
            left, line = left + size["w"], max(line, size["h"])
        top += line


def _with_matchers(part: Any, matchers: Mapping[str, str]) -> Any:
    """The same with matchers in place of the words that stand for them."""
    if isinstance(part, dict):
        return {name: _with_matchers(one, matchers) for name, one in part.items()}
    if isinstance(part, list):
        return [_with_matchers(one, matchers) for one in part]
    if isinstance(part, str):
        for word, text in matchers.items():
            part = part.replace(word, text)
    return part
