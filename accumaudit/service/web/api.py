"""The runs as JSON, in the shape of `check --format json`, with what is known of each while it runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from accumaudit.engine.findings import AuditReport
from accumaudit.outputs.json_report import document, finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from accumaudit.service.snapshot import RunView, Snapshot

MOST: Final = 100
"""Runs in one answer."""


def rendered(snapshot: Snapshot, runs: Sequence[RunView], after: int = 0) -> str:
    """These runs, the first of which has this place among all."""
    whole = document(AuditReport(runs=tuple(run.report for run in runs)))
    for shown, run in zip(whole["runs"], runs, strict=True):
        shown["live"] = _live(run)
    whole["service"] = {
        "time": snapshot.time,
        "ready": snapshot.ready,
        "troubles": snapshot.troubles,
        "runs": len(snapshot.runs),
        "first": after,
    }
    return json.dumps(finite(whole))


def _live(run: RunView) -> dict[str, Any]:
    return {
        "state": run.state,
        "launches": run.launches,
        "started_at": run.started_at,
        "last_record_time": run.last_record_time,
        "wrapper": run.wrapper,
        "judged_through": run.judged_through,
        "late_ranks": run.late_ranks,
        "findings": [
            {
                "code": one.code,
                "first_seen": one.first_seen,
                "last_seen": one.last_seen,
                "withdrawn": one.withdrawn,
            }
            for one in run.findings
        ],
    }
