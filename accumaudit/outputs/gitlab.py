"""The report as GitLab reads the quality of code: an array of issues."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from accumaudit.outputs.results import broken, results

if TYPE_CHECKING:
    from accumaudit.engine.findings import AuditReport
    from accumaudit.outputs.results import Options

SEVERITIES: Final = {"error": "critical", "warning": "major", "note": "info"}


def rendered(report: AuditReport, options: Options) -> str:
    """The issues as JSON, in ASCII."""
    issues = [
        _issue(
            one.title, one.message, one.fingerprint, SEVERITIES[one.severity], one.place.path, one.place.line
        )
        for one in results(report, options)
    ]
    rules = [
        _issue(f"{code} is broken", reason, f"broken {code}", "blocker", f"{code}.sql", 1)
        for code, reason in broken(report).items()
    ]
    return json.dumps([*rules, *issues], indent=2)


def _issue(check: str, text: str, fingerprint: str, severity: str, path: str, line: int) -> dict[str, object]:
    return {
        "description": text,
        "check_name": check,
        "fingerprint": fingerprint,
        "severity": severity,
        "location": {"path": path, "lines": {"begin": line}},
    }
