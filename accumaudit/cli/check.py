"""`accumaudit check`: audit runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accumaudit import outputs
from accumaudit.cli import Choice, StopError
from accumaudit.cli.config import FAIL_ON, Settings, find_settings
from accumaudit.cli.inputs import log_options, open_ledger, place
from accumaudit.cli.judging import exit_status, judge, tell_unused, wanted_rules
from accumaudit.cli.writing import known

if TYPE_CHECKING:
    from accumaudit.engine.findings import AuditReport
    from accumaudit.ledger.reader import Ledger
    from accumaudit.outputs.results import Options, Place


def _anchor(_: click.Context, param: click.Parameter, text: str | None) -> Place | None:
    if text is None:
        return None
    from accumaudit.outputs.results import Place, relative

    found = re.fullmatch(r"(.+):([1-9]\d{0,8})", text)
    if not found:
        what = f"`{text}` names no line; write FILE:LINE, as in train.py:120"
        raise click.BadParameter(what, param=param)
    return Place(relative(found[1]), int(found[2]))


@click.command("check")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=place)
@log_options
@click.option("--format", "format_", type=Choice(tuple(outputs.FORMATS)), default="text", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Write the report to a file.")
@click.option(
    "--anchor",
    callback=_anchor,
    metavar="FILE:LINE",
    help="Where sarif, github, gitlab and junit show findings, in place of the line of the log.",
)
@click.option(
    "--select", multiple=True, metavar="CODE|NAME", help="Judge by these rules alone: ACC1, ACC101."
)
@click.option("--ignore", multiple=True, metavar="CODE|NAME", help="Leave these rules out.")
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Leave out the findings that this file holds.",
)
@click.option(
    "--write-baseline",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write all findings to this file, and leave them out from now on.",
)
@click.option(
    "--textfile",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write metrics for Prometheus' node_exporter too, whole or not at all: FILE.prom.",
)
@click.option("--fail-on", type=Choice(FAIL_ON), help="Lowest severity that gives exit status 1.  [error]")
@click.option("--rules", multiple=True, metavar="DIR", help="A folder of further rules.")
@click.option("--param", multiple=True, metavar="CODE.NAME=VALUE", help="Set a threshold of a rule.")
def command(
    paths: tuple[Path | str, ...],
    arguments: Path | None,
    columns: Mapping[str, str],
    format_: str,
    output: Path | None,
    anchor: Place | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    baseline: Path | None,
    write_baseline: Path | None,
    textfile: Path | None,
    fail_on: str | None,
    rules: tuple[str, ...],
    param: tuple[str, ...],
) -> None:
    """Audit runs: folders of ledgers, folders of runs, or single files, here or at a URL (s3://, gs://, hf://).

    Logs that other programs wrote are recognised by what they hold.

    The exit status is 0 where nothing was found at or above --fail-on, 1 where something was,
    and 2 where the arguments, the input or a rule cannot be used.
    """
    found = find_settings(Path.cwd())
    settings = Settings(
        select=_words(select) or found.select,
        ignore=_words(ignore) or found.ignore,
        ignores=found.ignores,
        baseline=write_baseline or baseline or found.baseline,
        fail_on=fail_on or found.fail_on,
        rules=(*found.rules, *map(Path, rules)),
        params={**found.params, **_params(param)},
        arguments=arguments or found.arguments,
        columns=columns or found.columns,
    )
    report = _audit(paths, settings, write_baseline, textfile)
    tell_unused(report)
    from accumaudit.outputs.results import Options

    _write(report, format_, output, Options(fail_on=settings.fail_on, anchor=anchor))
    raise SystemExit(exit_status(report, settings.fail_on))


def _words(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(word.strip() for value in values for word in value.split(",") if word.strip())


def _params(values: Iterable[str]) -> dict[str, float]:
    params = {}
    for value in values:
        name, _, number = value.partition("=")
        try:
            params[name.strip()] = float(number)
        except ValueError:
            what = f"`{value}` sets no threshold; write CODE.NAME=NUMBER, as in ACC302.share=0.01"
            raise click.BadParameter(what, param_hint="--param") from None
    return params


def _audit(
    places: tuple[Path | str, ...], settings: Settings, write_baseline: Path | None, textfile: Path | None
) -> AuditReport:
    without = settings if write_baseline is None else replace(settings, baseline=None)
    catalogue = wanted_rules(without)
    ledger = open_ledger(places, settings)
    try:
        if write_baseline is not None:
            _write_baseline(judge(ledger, catalogue, without), write_baseline)
        report = judge(ledger, catalogue, settings)
        if textfile is not None:
            _write_metrics(ledger, report, textfile)
        return report
    finally:
        ledger.close()


def _write_metrics(ledger: Ledger, report: AuditReport, file: Path) -> None:
    from accumaudit.outputs.textfile import write_textfile

    try:
        write_textfile(ledger, report, file)
    except OSError as error:
        raise StopError(f"{file}: the metrics cannot be written: {error.strerror}") from None


def _write_baseline(report: AuditReport, file: Path) -> None:
    from accumaudit.engine.ignoring import baseline_of, write_baseline

    try:
        write_baseline(baseline_of(report, file.name), file)
    except OSError as error:
        raise StopError(f"{file}: the baseline cannot be written: {error.strerror}") from None


def _write(report: AuditReport, format_: str, output: Path | None, options: Options) -> None:
    if format_ == "github":
        _summarise_step(report, options)
    try:
        _send(report, format_, output, options)
    except BrokenPipeError:  # who reads it has seen enough
        raise
    except OSError as error:
        where = output or "standard output"
        raise StopError(f"{where}: the report cannot be written: {error.strerror}") from None


def _send(report: AuditReport, format_: str, output: Path | None, options: Options) -> None:
    if output is None and format_ == "text":
        _print_text(report)
        return
    from accumaudit.outputs import rendered

    text = rendered(report, format_, options)
    if output is None:
        click.echo(known(text))
    else:
        output.write_text(text + "\n", encoding="utf-8")


def _print_text(report: AuditReport) -> None:
    from rich.console import Console

    from accumaudit.outputs import text

    text.render(report, Console())


def _summarise_step(report: AuditReport, options: Options) -> None:
    file = os.environ.get("GITHUB_STEP_SUMMARY")
    if not file:
        return
    from accumaudit.outputs import github

    try:
        github.append_summary(report, options, Path(file))
    except OSError as error:
        raise StopError(f"{file}: the summary of the step cannot be written: {error.strerror}") from None
