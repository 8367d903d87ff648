"""`accumaudit export`: whole runs for other programs that show numbers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from accumaudit.cli import Choice, StopError
from accumaudit.cli.inputs import SHOWN, log_options, log_settings, open_ledger, place
from accumaudit.cli.judging import judge, wanted_rules

if TYPE_CHECKING:
    from accumaudit.service.snapshot import Snapshot

FORMATS: Final = ("openmetrics", "tensorboard")


@click.command("export")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=place)
@click.option("--format", "format_", type=Choice(FORMATS), required=True)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The file of openmetrics; the folder of tensorboard.",
)
@log_options
def command(
    paths: tuple[Path | str, ...],
    format_: str,
    output: Path,
    arguments: Path | None,
    columns: Mapping[str, str],
) -> None:
    """Write what every attempt of runs was, and the findings, for Prometheus or TensorBoard.

    openmetrics is one file with the times of the records, which `promtool tsdb create-blocks-from
    openmetrics` turns into blocks of a Prometheus. tensorboard is a folder with the event files of
    each run.
    """
    settings = log_settings(arguments, columns)
    catalogue = wanted_rules(settings)
    ledger = open_ledger(paths, settings)
    try:
        report = judge(ledger, catalogue, settings)
        from accumaudit.service.whole import snapshot_of

        snapshot = snapshot_of(ledger, report, time.time())
    finally:
        ledger.close()
    try:
        if format_ == "openmetrics":
            _write_openmetrics(snapshot, output)
        else:
            _write_tensorboard(snapshot, output)
    except OSError as error:
        raise StopError(f"{output}: it cannot be written: {error.strerror}") from None


def _write_openmetrics(snapshot: Snapshot, file: Path) -> None:
    from accumaudit.outputs import openmetrics
    from accumaudit.outputs.words import printable

    undated = openmetrics.undated(snapshot)
    if len(undated) == len(snapshot.runs):
        raise StopError("no record of these runs has a time, which every sample of Prometheus needs")
    for run in undated[:SHOWN]:
        click.echo(printable(f"note: {run.run_id}: no record has a time; the run was left out"), err=True)
    if len(undated) > SHOWN:
        click.echo(f"note: {len(undated) - SHOWN:,} more runs without times were left out", err=True)
    with file.open("w", encoding="utf-8", newline="\n") as output:
        output.writelines(openmetrics.lines(snapshot))


def _write_tensorboard(snapshot: Snapshot, folder: Path) -> None:
    from accumaudit.outputs.tensorboard.export import export

    export(snapshot, folder)
