"""Reports and points as JSON, between the service and the process that judges, and in what is saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
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

_POINT: Final = tuple(one.name for one in fields(Point))

_OF_RULE: Final = ("name", "summary", "fix")
"""What a verdict repeats of its rule."""


def report_json(report: RunReport) -> Json:
    """A report as JSON."""
    plain = asdict(replace(report, verdicts=()))
    return {**plain, "verdicts": [verdict_json(one) for one in report.verdicts]}


def verdict_json(verdict: Verdict) -> Json:
    """A verdict as JSON, without what its rule says anyway."""
    return {
        "code": verdict.code,
        "severity": verdict.severity,
        "status": verdict.status,
        "judged": verdict.judged,
        "reason": verdict.reason,
        "finding": verdict.finding and asdict(verdict.finding),
        "ignored": [asdict(one) for one in verdict.ignored],
    }


def finding_json(view: FindingView) -> Json:
    """A finding that was told, as JSON."""
    return {
        "verdict": verdict_json(view.verdict),
        "first_seen": view.first_seen,
        "last_seen": view.last_seen,
        "withdrawn": view.withdrawn,
    }


def point_json(point: Point) -> Json:
    """An attempt as JSON."""
    return {name: getattr(point, name) for name in _POINT}


def report(value: Mapping[str, Json], catalogue: Catalogue) -> RunReport:
    """The report of a run."""
    recorded = value["recorded_ranks"]
    verdicts = [one for one in value["verdicts"] if one["code"] in catalogue]
    return RunReport(
        **{
            **value,
            "ranks": tuple(value["ranks"]),
            "recorded_ranks": None if recorded is None else tuple(recorded),
            "verdicts": tuple(verdict(one, catalogue) for one in verdicts),
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


def point(value: Mapping[str, Json]) -> Point:
    """An attempt."""
    return Point(**value)
