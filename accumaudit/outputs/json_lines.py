"""The report as JSON lines: one object for each run, each verdict and each line that was left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from accumaudit.outputs.json_report import SCHEMA, finite, run_fields, verdict_fields

if TYPE_CHECKING:
    from accumaudit.engine.findings import AuditReport
    from accumaudit.outputs.results import Options


def rendered(report: AuditReport, _options: Options) -> str:
    """A line for each object, in ASCII; `record` says what it is."""
    return "\n".join(json.dumps(finite(line)) for line in _lines(report))


def _lines(report: AuditReport) -> Iterator[dict[str, Any]]:
    for run in report.runs:
        yield {"record": "run", "schema": SCHEMA, **run_fields(run), "remarks": run.remarks}
        for verdict in run.verdicts:
            yield {"record": "verdict", "run_id": run.run_id, **verdict_fields(verdict)}
        for line in run.unreadable:
            yield {"record": "unreadable", "run_id": run.run_id, **asdict(line)}
    for text in report.no_logs:
        yield {"record": "no_log", **asdict(text)}
    yield {"record": "summary", **report.summary()}
