"""The report as SARIF 2.1.0, the format of static analysis that code hosts and editors read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from accumaudit import __version__
from accumaudit.outputs.json_report import finite
from accumaudit.outputs.results import (
    Place,
    Result,
    at_or_above,
    broken,
    ignored,
    relative,
    results,
    sentence,
)
from accumaudit.outputs.words import printable, spans

if TYPE_CHECKING:
    from accumaudit.engine.findings import AuditReport, Verdict
    from accumaudit.outputs.results import Options

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
MOST: Final = 25_000
"""Results of one run that GitHub takes; a longer file is refused as a whole."""

Node = dict[str, Any]


def rendered(report: AuditReport, options: Options) -> str:
    """The log as JSON, in ASCII: one run of the tool, one result for each rule and audited run."""
    found = [*results(report, options), *ignored(report, options)]
    rules = _rules(report)
    places = {rule["id"]: place for place, rule in enumerate(rules)}
    run = {
        "tool": {"driver": {"name": "accumaudit", "semanticVersion": __version__, "rules": rules}},
        "columnKind": "utf16CodeUnits",
        "invocations": [_invocation(report, options, len(found))],
        "results": [_result(one, places[one.verdict.code]) for one in found[:MOST]],
    }
    return json.dumps(finite({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}), indent=2)


def _rules(report: AuditReport) -> list[Node]:
    verdicts = {verdict.code: verdict for run in report.runs for verdict in run.verdicts}
    return [_rule(verdict) for _, verdict in sorted(verdicts.items())]


def _rule(verdict: Verdict) -> Node:
    summary = sentence(verdict.summary)
    return {
        "id": verdict.code,
        "name": "".join(word.capitalize() for word in verdict.name.split("-")),
        "shortDescription": {"text": summary},
        "fullDescription": {"text": summary},
        "help": {"text": verdict.fix.strip()},
        "properties": {"tags": ["training", "gradient-accumulation"]},
    }


def _result(one: Result, rule: int) -> Node:
    finding = one.finding
    related = [
        {
            **_location(Place(relative(example.file), example.line or 1)),
            "message": {"text": printable(example.message)},
        }
        for example in finding.examples
        if example.file
    ]
    node: Node = {
        "ruleId": one.verdict.code,
        "ruleIndex": rule,
        "level": one.severity,
        "message": {"text": one.message},
        "locations": [
            {**_location(one.place), "logicalLocations": [{"fullyQualifiedName": printable(one.run.run_id)}]}
        ],
        "relatedLocations": [{"id": number, **place} for number, place in enumerate(related, 1)],
        "partialFingerprints": {"accumauditFinding/v1": one.fingerprint},
        "properties": {
            "run": one.run.run_id,
            "firstUpdate": finding.first_update,
            "lastUpdate": finding.last_update,
            "count": finding.count,
            "ranks": spans(finding.ranks),
            "observed": finding.observed,
            "expected": finding.expected,
        },
    }
    if one.reason is not None:
        node["suppressions"] = [{"kind": "external", "justification": one.reason}]
    return node


def _location(place: Place) -> Node:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(place.path)},
            "region": {"startLine": place.line},
        }
    }


def _invocation(report: AuditReport, options: Options, found: int) -> Node:
    """How the audit went: what is no finding stands here."""
    reasons = broken(report)
    notifications = [_notification("error", f"{code} is broken: {why}") for code, why in reasons.items()]
    notifications += _unreadable(report)
    if found > MOST:
        notifications.append(_notification("warning", f"{found - MOST:,} further findings are left out"))
    failed = any(at_or_above(one.severity, options.fail_on) for one in results(report, options))
    return {
        "executionSuccessful": not reasons,
        "exitCode": 2 if reasons else int(failed),
        "toolExecutionNotifications": notifications[:MOST],
    }


def _unreadable(report: AuditReport) -> Iterator[Node]:
    for run in report.runs:
        for line in run.unreadable:
            place = _location(Place(relative(line.file), line.line or 1))
            yield {**_notification("warning", printable(line.why)), "locations": [place]}


def _notification(level: str, text: str) -> Node:
    return {"level": level, "message": {"text": text}}
