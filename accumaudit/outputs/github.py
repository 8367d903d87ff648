"""The report as commands of GitHub's workflows, which mark lines of files, and as a summary of the step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from accumaudit.outputs.results import Result, broken, results
from accumaudit.outputs.words import footer, plural

if TYPE_CHECKING:
    from accumaudit.engine.findings import AuditReport
    from accumaudit.outputs.results import Options

COMMANDS: Final = {"error": "error", "warning": "warning", "note": "notice"}
SHOWN: Final = 10
"""Annotations of a level that GitHub shows of one step."""
SUMMARY_BYTES: Final = 1024 * 1024
"""What GitHub takes of a step's summary; it drops a longer one."""


def rendered(report: AuditReport, options: Options) -> str:
    """A command for each finding, the worst first, and the footer of the report."""
    return "\n".join([*_commands(report, options), footer(report)])


def _commands(report: AuditReport, options: Options) -> Iterator[str]:
    by_level: dict[str, list[Result]] = defaultdict(list)
    for one in results(report, options):
        by_level[one.severity].append(one)
    for code, reason in broken(report).items():
        yield f"::error title={_property(code)} is broken::{_data(reason)}"
    for severity, found in by_level.items():
        yield from map(_command, found[:SHOWN])
        if len(found) > SHOWN:
            yield f"{plural(len(found) - SHOWN, f'further {severity}')} in the summary of this step"


def _command(one: Result) -> str:
    place = f"file={_property(one.place.path)},line={one.place.line},title={_property(one.title)}"
    return f"::{COMMANDS[one.severity]} {place}::{_data(one.message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def append_summary(report: AuditReport, options: Options, file: Path) -> None:
    """Write the report behind what stands in the summary of the step; raises OSError where it cannot."""
    from accumaudit.outputs import markdown

    with file.open("ab") as summary:
        gap = b"\n" if summary.tell() else b""  # what stands there may lack its last line's end
        room = SUMMARY_BYTES - summary.tell() - len(gap)
        summary.write(gap + markdown.cut(report, options, room).encode())
