"""`accumaudit postmortem`: why runs went wrong, and from which update on."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accumaudit.cli import Choice, StopError
from accumaudit.cli.config import Settings
from accumaudit.cli.inputs import log_options, log_settings, memory_option, open_ledger, place
from accumaudit.cli.judging import exit_status, judge, tell_unused, wanted_rules
from accumaudit.cli.progress import progress
from accumaudit.cli.writing import format_of, missing_packages, write
from accumaudit.comparison import BYS
from accumaudit.outputs import postmortem

if TYPE_CHECKING:
    from accumaudit.comparison import By
    from accumaudit.engine.findings import AuditReport
    from accumaudit.ledger.reader import Ledger
    from accumaudit.postmortem import PostMortem


@click.command("postmortem")
@click.argument("path", type=place)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the report to a file: FILE.html, FILE.md, FILE.json.",
)
@click.option(
    "--format",
    "format_",
    type=Choice(tuple(postmortem.FORMATS)),
    help="Where the file's name does not tell.  [markdown]",
)
@click.option("--against", type=place, metavar="OTHER_RUN", help="Compare the run with this one.")
@click.option("--by", type=Choice(BYS), help="What both are counted by; left out, what suits them.")
@memory_option
@log_options
def command(
    path: Path | str,
    output: Path | None,
    format_: str | None,
    against: Path | str | None,
    by: By | None,
    memory: str | None,
    arguments: Path | None,
    columns: Mapping[str, str],
) -> None:
    """Tell why a run went wrong: what was wrong first, and from where to resume.

    PATH is a run, or a folder of several; FOLDER#2 is the second run of a folder. A page with charts is
    written to FILE.html. Rules and settings are those of `accumaudit check`. The exit status is 0 where
    the story could be told, and 2 where the arguments, the input or a rule cannot be used.
    """
    if by is not None and against is None:
        raise click.UsageError("--by is about a comparison: name the other run with --against")
    form = format_ or format_of(output, postmortem.FORMATS, "markdown")
    settings = log_settings(arguments, columns)
    with missing_packages():
        importlib.import_module(f"{postmortem.__name__}.{postmortem.FORMATS[form]}")
        report, tellings = _told(path, against, settings, memory, by)
        text = postmortem.rendered(tellings, form)
    tell_unused(report)
    _tell_broken(report)
    write(text, output)
    raise SystemExit(exit_status(report, "never"))


def _tell_broken(report: AuditReport) -> None:
    """Say on stderr which rules are broken: the exit status is theirs."""
    from accumaudit.outputs.results import broken

    for code, reason in broken(report).items():
        click.echo(f"error: {code} is broken: {reason}", err=True)


def _told(
    path: Path | str, against: Path | str | None, settings: Settings, memory: str | None, by: By | None
) -> tuple[AuditReport, list[PostMortem]]:
    import duckdb

    from accumaudit.cli.diff import compared
    from accumaudit.comparison.sides import unnumbered
    from accumaudit.engine.rule import sql_reason
    from accumaudit.postmortem import post_mortems

    catalogue = wanted_rules(settings)
    places = [path] if against is None else [path, against]
    ledger = open_ledger(map(unnumbered, places), settings, memory_limit=memory)
    try:
        report = judge(ledger, catalogue, settings)
        found = None if against is None else compared(ledger, places, by, charts=True)
        with progress("telling what happened"):
            if found is not None:
                report = _of_one(report, found.sides[0].run_id)
            elif unnumbered(path) != path:
                report = _of_one(report, _numbered(ledger, path))
            return report, [replace(one, comparison=found) for one in post_mortems(ledger, report)]
    except duckdb.Error as error:
        raise StopError(f"the post-mortem cannot be told: {sql_reason(error)}") from None
    finally:
        ledger.close()


def _of_one(report: AuditReport, run_id: str) -> AuditReport:
    return replace(report, runs=tuple(run for run in report.runs if run.run_id == run_id))


def _numbered(ledger: Ledger, path: Path | str) -> str:
    """The run that a path with a number names, as in `runs/first#2`."""
    from accumaudit.comparison.sides import run_of
    from accumaudit.ledger.sources import LedgerError
    from accumaudit.outputs.words import printable

    try:
        return run_of(ledger, path)
    except LedgerError as error:
        raise StopError(printable(str(error))) from None
