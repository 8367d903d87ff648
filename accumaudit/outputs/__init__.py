"""What a report looks like: one module a format; each reads the findings alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from accumaudit.engine.findings import AuditReport
    from accumaudit.outputs.results import Options

FORMATS: Final[Mapping[str, str]] = {
    "text": "text",
    "json": "json_report",
    "jsonl": "json_lines",
    "sarif": "sarif",
    "github": "github",
    "gitlab": "gitlab",
    "junit": "junit",
    "markdown": "markdown",
}
"""The formats by the names that the command line knows, and the modules that write them."""


def rendered(report: AuditReport, format_: str, options: Options) -> str:
    """The report in one of the formats."""
    module = importlib.import_module(f"{__name__}.{FORMATS[format_]}")
    write: Callable[[AuditReport, Options], str] = module.rendered
    return write(report, options)
