"""Timelines as JSON, in a form that stays as it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any, Final

from accumaudit.outputs.json_report import finite
from accumaudit.outputs.timeline.model import Attempt, Section, Timeline

SCHEMA: Final = 1

_ONLY_FOR_TABLES: Final = ("place", "faulty_so_far", "severity", "tolerance")
_DETAILS: Final = ("faults", "ranks")
_ATTEMPT: Final = [
    field.name for field in fields(Attempt) if field.name not in (*_ONLY_FOR_TABLES, *_DETAILS)
]


def render(timelines: Sequence[Timeline], *, details: bool) -> str:
    """One JSON object, in ASCII; details are those of each rank."""
    runs = [_run(timeline, details=details) for timeline in timelines]
    return json.dumps(finite({"schema": SCHEMA, "runs": runs}), indent=2)


def _run(timeline: Timeline, *, details: bool) -> dict[str, Any]:
    run = timeline.run
    return {
        "run_id": run.run_id,
        "path": run.path,
        "runtime": run.runtime,
        "ranks": run.ranks,
        "world_size": run.world_size,
        "updates": run.updates,
        "attempts": run.attempts,
        "skipped": run.skipped,
        "sections": [section_fields(section, details=details) for section in timeline.sections],
        "findings": [
            {
                "code": verdict.code,
                "name": verdict.name,
                "severity": verdict.severity,
                "count": verdict.finding.count,
                "message": verdict.finding.message,
            }
            for verdict in run.with_status("failed")
            if verdict.finding is not None
        ],
    }


def section_fields(section: Section, *, details: bool) -> dict[str, Any]:
    """The attempts of one optimizer in one launch."""
    head = replace(section, attempts=())
    values = {name: value for name, value in asdict(head).items() if name not in ("launches", "optimizers")}
    return values | {"attempts": [_attempt(one, details=details) for one in section.attempts]}


def _attempt(attempt: Attempt, *, details: bool) -> dict[str, Any]:
    values = {name: getattr(attempt, name) for name in _ATTEMPT}
    if details:
        values["faults"] = [asdict(fault) for fault in attempt.faults]
        values["ranks"] = [asdict(rank) for rank in attempt.ranks]
    return values
