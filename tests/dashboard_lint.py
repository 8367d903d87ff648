"""What every dashboard is to keep to, so that it works in a Grafana that its author never saw."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import promql_parser

Json: TypeAlias = dict[str, Any]

UNITS: Final = {
    *("none", "short", "locale", "sci", "s", "dateTimeFromNow", "percentunit", "Bps", "bytes", "string"),
}
"""Those of Grafana's that are used here."""
KINDS: Final = {"timeseries", "stat", "table", "state-timeline", "text"}
RANGES: Final = {"rate", "increase", "irate", "delta", "changes"}


def faults(board: Json) -> list[str]:
    """What is wrong with a dashboard, in sentences."""
    return [
        *_page(board),
        *_variables(board),
        *_places(board),
        *(f"{panel['title']}: {fault}" for panel in panels(board) for fault in _panel(panel)),
        *_queries(board),
    ]


def panels(board: Json) -> list[Json]:
    """The panels that show something."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries(board: Json) -> Iterator[tuple[str, str, bool]]:
    """Every query: where it stands, its text, and whether it asks for one moment alone."""
    for panel in panels(board):
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"], target["instant"]
    for one in board["annotations"]["list"]:
        if "expr" in one:
            yield f"annotation {one['name']}", one["expr"], False


def label_queries(board: Json) -> Iterator[tuple[str, str, str]]:
    """Every variable that is a label's values: its name, the series that have the label, the label."""
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
            assert found is not None, variable["query"]
            yield variable["name"], found[1], found[2]


def filled(text: str, values: dict[str, str]) -> str:
    """A query as Grafana sends it, with these values of its variables."""
    for name, value in {"__rate_interval": "5m", **values}.items():
        text = re.sub(rf"\${name}\b|\${{{name}}}", value.replace("\\", r"\\"), text)
    assert "$" not in text, text
    return text


def selectors(text: str) -> list[promql_parser.VectorSelector]:
    """The series that a query asks for."""
    found: list[promql_parser.VectorSelector] = []

    def visit(part: promql_parser.Expr) -> None:
        if isinstance(part, promql_parser.VectorSelector):
            found.append(part)
        if isinstance(part, promql_parser.MatrixSelector):
            found.append(part.vector_selector)

    promql_parser.walk(promql_parser.parse(text), visit)
    return found


def _page(board: Json) -> Iterator[str]:
    """What stands outside of panels."""
    expected = {"id": None, "editable": False, "timezone": "browser", "graphTooltip": 1, "refresh": "30s"}
    for name, value in expected.items():
        if board[name] != value:
            yield f"{name} is {board[name]!r}"
    if not re.fullmatch(r"accumaudit-[a-z-]{1,29}", board["uid"]):
        yield f"uid {board['uid']!r}"
    if not 39 <= board["schemaVersion"] <= 41:
        yield f"schemaVersion {board['schemaVersion']}"
    if "accumaudit" not in board["tags"] or not board["description"].endswith("."):
        yield "no tag or no description"
    for one in [one for one in _dicts(board) if isinstance(one.get("datasource"), dict)]:
        source = one["datasource"]
        if source != {"type": "prometheus", "uid": "${datasource}"} and source["uid"] != "-- Grafana --":
            yield f"a data source of its own: {source}"


def _variables(board: Json) -> Iterator[str]:
    first, *rest = board["templating"]["list"]
    if (first["name"], first["type"], first["label"]) != ("datasource", "datasource", "Data source"):
        yield "the first variable is not the data source"
    for variable in (first, *rest):
        if "current" in variable or variable["options"]:
            yield f"the variable {variable['name']} remembers a choice"
    for variable in rest:
        if variable["refresh"] != 2:
            yield f"the variable {variable['name']} is not renewed with the span of time"
        if variable["includeAll"] and variable["allValue"] not in (".*", ".+"):
            yield f"all of the variable {variable['name']} is a list"
    known = {variable["name"] for variable in (first, *rest)}
    used = {name for text in _texts(board) for name in re.findall(r"\$\{?(\w+)", text)}
    built_in = {"__rate_interval", "__data", "__url_time_range"}
    for name in used - built_in - known:
        yield f"the variable {name} does not exist"
    for name in known - used:
        yield f"the variable {name} is not used"


def _places(board: Json) -> Iterator[str]:
    numbers = [panel["id"] for panel in board["panels"]]
    if len(numbers) != len(set(numbers)):
        yield "two panels have one number"
    taken: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        place = panel["gridPos"]
        if place["x"] < 0 or place["w"] < 1 or place["x"] + place["w"] > 24:
            yield f"{panel['title']}: does not fit into 24 columns"
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                if (x, y) in taken:
                    yield f"{panel['title']} lies on {taken[x, y]}"
                    return
                taken[x, y] = panel["title"]


def _panel(panel: Json) -> Iterator[str]:
    if panel["type"] not in KINDS:
        yield f"the kind {panel['type']}"
    if not panel["title"] or not panel["description"].endswith("."):
        yield "no title or no description"
    units = [panel["fieldConfig"]["defaults"]["unit"]]
    for override in panel["fieldConfig"]["overrides"]:
        units += [one["value"] for one in override["properties"] if one["id"] == "unit"]
    if set(units) - UNITS:
        yield f"the units {sorted(set(units) - UNITS)}"
    letters = [target["refId"] for target in panel["targets"]]
    if not letters or len(letters) != len(set(letters)):
        yield f"queries {letters}"
    for target in panel["targets"]:
        if target["instant"] == target["range"]:
            yield "a query is of one moment or of a span"


def _queries(board: Json) -> Iterator[str]:
    for place, text, instant in queries(board):
        values = dict.fromkeys(re.findall(r"\$\{?([a-z]\w*)", text), "x")
        for name, span in re.findall(r"(\w+)\([^()]*\[([^\]]+)\]", text):
            if name in RANGES and span != "$__rate_interval":
                yield f"{place}: {name} over {span}"
        plain = filled(text, values)
        try:
            asked = selectors(plain)
        except ValueError as error:
            yield f"{place}: {error}"
            continue
        for selector in asked:
            name = selector.name or ""
            matched = {matcher.name for matcher in selector.matchers.matchers}
            if name.startswith("accumaudit_") and "instance" not in matched:
                yield f"{place}: {name} of every service"
            if name.endswith("_total") and not instant and f"{name}{{" not in _ranged(plain):
                yield f"{place}: {name} only ever grows"


def _ranged(text: str) -> str:
    """The parts of a query that functions of spans are over."""
    return " ".join(re.findall(rf"(?:{'|'.join(RANGES)})\(([^()]*\[)", text))


def _dicts(part: Any) -> Iterator[Json]:
    if isinstance(part, dict):
        yield part
    for one in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _dicts(one)


def _texts(part: Any) -> Iterator[str]:
    for one in part.values() if isinstance(part, dict) else part if isinstance(part, list) else (part,):
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict | list):
            yield from _texts(one)
