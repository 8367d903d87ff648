"""Reports and points as JSON, between the service and the process that judges, and in what is saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from accumaudit.engine.catalogue import Catalogue
from accumaudit.engine.findings import (
    Example,
    Finding,
    Ignored,
    RunReport,
    UnreadableLine,
    Verdict,
)
from accumaudit.service.snapshot import FindingView, Point

Json = Any

_OF_RULE: Final = ("name", "summary", "fix")
"""What a verdict repeats of its rule."""


def to_json(value: RunReport | Verdict | FindingView | Point) -> Json:
    """The value without what its rules say anyway."""
    return _slim(asdict(value))


def _slim(value: Json) -> Json:
    if isinstance(value, dict):
        kept = {name: _slim(item) for name, item in value.items()}
        if "fix" in kept and "code" in kept:
            for name in _OF_RULE:
                del kept[name]
        return kept
    if isinstance(value, list | tuple):
        return [_slim(item) for item in value]
    return value


def report(value: Mapping[str, Json], catalogue: Catalogue) -> RunReport:
    """The report of a run."""
    recorded = value["recorded_ranks"]
    return RunReport(
        **{
            **value,
            "ranks": tuple(value["ranks"]),
            "recorded_ranks": None if recorded is None else tuple(recorded),
            "verdicts": tuple(verdict(one, catalogue) for one in value["verdicts"]),
            "unreadable": tuple(UnreadableLine(**one) for one in value["unreadable"]),
            "remarks": tuple(value["remarks"]),
            "holes": tuple(value["holes"]),
        }
    )


def verdict(value: Mapping[str, Json], catalogue: Catalogue) -> Verdict:
    """The verdict of a rule that the catalogue has."""
    rule = catalogue[value["code"]]
    return Verdict(
        **{
            **value,
            **{name: getattr(rule, name) for name in _OF_RULE},
            "finding": None if value["finding"] is None else _finding(value["finding"]),
            "ignored": tuple(
                Ignored(**{**one, "finding": _finding(one["finding"])}) for one in value["ignored"]
            ),
        }
    )


def _finding(value: Mapping[str, Json]) -> Finding:
    examples = tuple(Example(**one) for one in value["examples"])
    return Finding(**{**value, "ranks": tuple(value["ranks"]), "examples": examples})


def finding_view(value: Mapping[str, Json], catalogue: Catalogue) -> FindingView:
    """A finding that was told."""
    return FindingView(**{**value, "verdict": verdict(value["verdict"], catalogue)})


def point(value: Mapping[str, Json]) -> Point:
    """An attempt."""
    return Point(**value)
