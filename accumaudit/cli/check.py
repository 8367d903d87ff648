"""`accumaudit check`: audit runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accumaudit.cli import StopError
from accumaudit.cli.config import FAIL_ON, Settings, find_settings
from accumaudit.cli.inputs import log_options, open_ledger, place
from accumaudit.cli.judging import exit_status, judge, wanted_rules

if TYPE_CHECKING:
    from accumaudit.engine.findings import AuditReport


@click.command("check")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=place)
@log_options
@click.option("--format", "format_", type=click.Choice(("text", "json")), default="text", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Write the report to a file.")
@click.option(
    "--select", multiple=True, metavar="CODE|NAME", help="Judge by these rules alone: ACC1, ACC101."
)
@click.option("--ignore", multiple=True, metavar="CODE|NAME", help="Leave these rules out.")
@click.option(
    "--fail-on", type=click.Choice(FAIL_ON), help="Lowest severity that gives exit status 1.  [error]"
)
@click.option("--rules", multiple=True, metavar="DIR", help="A folder of further rules.")
@click.option("--param", multiple=True, metavar="CODE.NAME=VALUE", help="Set a threshold of a rule.")
def command(
    paths: tuple[Path | str, ...],
    arguments: Path | None,
    columns: Mapping[str, str],
    format_: str,
    output: Path | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
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
        fail_on=fail_on or found.fail_on,
        rules=(*found.rules, *map(Path, rules)),
        params={**found.params, **_params(param)},
        arguments=arguments or found.arguments,
        columns=columns or found.columns,
    )
    report = _audit(paths, settings)
    _write(report, format_, output)
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


def _audit(places: tuple[Path | str, ...], settings: Settings) -> AuditReport:
    catalogue = wanted_rules(settings)
    ledger = open_ledger(places, settings)
    try:
        return judge(ledger, catalogue, settings)
    finally:
        ledger.close()


def _write(report: AuditReport, format_: str, output: Path | None) -> None:
    if output is None and format_ == "text":
        _print_text(report)
        return
    text = _rendered(report, format_)
    if output is None:
        click.echo(text)
        return
    try:
        output.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise StopError(f"{output}: the report cannot be written: {error.strerror}") from None


def _print_text(report: AuditReport) -> None:
    from rich.console import Console

    from accumaudit.outputs import text

    text.render(report, Console())


def _rendered(report: AuditReport, format_: str) -> str:
    if format_ == "json":
        from accumaudit.outputs import json_report

        return json_report.render(report)
    from rich.console import Console

    from accumaudit.outputs import text

    page = StringIO()
    text.render(report, Console(file=page, force_terminal=False))
    return page.getvalue().rstrip("\n")
