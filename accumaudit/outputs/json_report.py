"""The report as JSON, in a form that stays as it is."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from accumaudit.engine.findings import AuditReport, RunReport, Verdict
    from accumaudit.outputs.results import Options

SCHEMA: Final = 1


def rendered(report: AuditReport, _options: Options) -> str:
    """The report as one JSON object, in ASCII."""
    return json.dumps(finite(document(report)), indent=2)


def document(report: AuditReport) -> dict[str, Any]:
    """The report as that object."""
    return {
        "schema": SCHEMA,
        "runs": [_run(run) for run in report.runs],
        "no_logs": [asdict(one) for one in report.no_logs],
        "summary": report.summary(),
    }


def finite(value: object) -> object:
    """The value with null for each number that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _run(run: RunReport) -> dict[str, Any]:
    return {
        **run_fields(run),
        "verdicts": [verdict_fields(verdict) for verdict in run.verdicts],
        "unreadable": [asdict(one) for one in run.unreadable],
        "remarks": run.remarks,
    }


def run_fields(run: RunReport) -> dict[str, Any]:
    """What the run is."""
    return {
        "run_id": run.run_id,
        "path": run.path,
        "format": run.format,
        "runtime": run.runtime,
        "ranks": run.ranks,
        "world_size": run.world_size,
        "updates": run.updates,
        "attempts": run.attempts,
        "skipped": run.skipped,
    }


def verdict_fields(verdict: Verdict) -> dict[str, Any]:
    """What one rule says of it."""
    return {
        "code": verdict.code,
        "name": verdict.name,
        "severity": verdict.severity,
        "status": verdict.status,
        "judged": verdict.judged,
        "reason": verdict.reason,
        "finding": verdict.finding and asdict(verdict.finding),
        "ignored": [asdict(one) for one in verdict.ignored],
    }
