"""`accumaudit show`: a run attempt by attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accumaudit.cli import Choice, StopError
from accumaudit.cli.inputs import log_options, log_settings, open_ledger, place
from accumaudit.cli.judging import exit_status, judge, tell_unused, wanted_rules

if TYPE_CHECKING:
    from accumaudit.engine.findings import AuditReport
    from accumaudit.outputs.timeline.model import Timeline
    from accumaudit.outputs.timeline.reading import What


@click.command("show")
@click.argument("path", type=place)
@click.option(
    "--around", type=int, metavar="N", help="The attempts near update N, each micro-step of each rank."
)
@click.option("--format", "format_", type=Choice(("text", "json")), default="text", show_default=True)
@log_options
def command(
    path: Path | str, around: int | None, format_: str, arguments: Path | None, columns: Mapping[str, str]
) -> None:
    """Show a run as a table: its updates, tokens, rates, skips and faults.

    A long run is shown by its beginning, its end and everything faulty; JSON has every attempt. A dash
    stands for what was not recorded. Rules, settings and exit status are those of `accumaudit check`.
    """
    from accumaudit.outputs.timeline.reading import timelines

    settings = log_settings(arguments, columns)
    catalogue = wanted_rules(settings)
    ledger = open_ledger([path], settings)
    try:
        report = judge(ledger, catalogue, settings)
        what: What = "all" if format_ == "json" else "overview"
        runs = timelines(ledger, report, what if around is None else around)
    finally:
        ledger.close()
    tell_unused(report)
    if around is not None and not any(run.sections for run in runs):
        raise StopError(_nothing_near(around, runs))
    _print(runs, report, around, format_)
    raise SystemExit(exit_status(report, settings.fail_on))


def _print(runs: Sequence[Timeline], report: AuditReport, around: int | None, format_: str) -> None:
    if format_ == "json":
        from accumaudit.outputs.timeline import json_form

        click.echo(json_form.render(runs, details=around is not None))
        return
    from rich.console import Console

    from accumaudit.outputs.timeline import text

    text.render(runs, report, Console(), around)


def _nothing_near(around: int, runs: Sequence[Timeline]) -> str:
    from accumaudit.outputs.words import printable

    there = [
        f"{printable(run.run.run_id)} has updates {run.first_update} to {run.last_update}"
        if run.last_update is not None
        else f"{printable(run.run.run_id)} has none"
        for run in runs
    ]
    return f"there is no update {around}: {'; '.join(there)}"
