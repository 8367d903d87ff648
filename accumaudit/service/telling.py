"""A finding as JSON, for programs that are told of one: it stands alone, with the run that it is about."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from accumaudit.outputs.json_report import SCHEMA, finite, run_fields, verdict_fields
from accumaudit.outputs.words import headline

if TYPE_CHECKING:
    from accumaudit.engine.findings import RunReport
    from accumaudit.service.snapshot import FindingView


def told(run: RunReport, finding: FindingView) -> str:
    """A finding as one line of ASCII: what `check` says of it in JSON, in words, and what to do."""
    verdict = finding.verdict
    whole = {
        "record": "finding",
        "schema": SCHEMA,
        "run": run_fields(run),
        **verdict_fields(verdict),
        "text": headline(verdict, run),
        "summary": verdict.summary,
        "advice": verdict.advice,
        "first_seen": finding.first_seen,
        "withdrawn": finding.withdrawn,
    }
    return json.dumps(finite(whole))
