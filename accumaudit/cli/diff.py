"""`accumaudit diff`: where two runs first differ, and in what."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accumaudit.cli import Choice, StopError
from accumaudit.cli.config import Settings
from accumaudit.cli.inputs import log_options, log_settings, memory_option, open_ledger, place
from accumaudit.cli.progress import progress
from accumaudit.cli.writing import format_of, missing_packages, write
from accumaudit.comparison import BYS, TOLERANCE
from accumaudit.outputs import comparison as outputs

if TYPE_CHECKING:
    from accumaudit.comparison import By, Comparison
    from accumaudit.ledger.reader import Ledger


def _tolerance(_: click.Context, param: click.Parameter, value: float) -> float:
    if not 0 <= value < 1:
        raise click.BadParameter(f"{value:g} is no share of a value; give one from 0 to 1", param=param)
    return value


@click.command("diff")
@click.argument("run_a", type=place)
@click.argument("run_b", type=place)
@click.option(
    "--by",
    type=Choice(BYS),
    help="What places are counted in.  [update where an update is of one size in both, else tokens]",
)
@click.option(
    "--tolerance",
    type=float,
    default=TOLERANCE,
    show_default=True,
    callback=_tolerance,
    metavar="SHARE",
    help="Up to this difference, as a share of the larger, two numbers are the same.",
)
@click.option(
    "--format",
    "format_",
    type=Choice(tuple(outputs.FORMATS)),
    help="Where the name of the file does not tell.  [text]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write it to a file: FILE.html, FILE.md, FILE.json, FILE.txt.",
)
@memory_option
@log_options
def command(
    run_a: Path | str,
    run_b: Path | str,
    by: By | None,
    tolerance: float,
    format_: str | None,
    output: Path | None,
    memory: str | None,
    arguments: Path | None,
    columns: Mapping[str, str],
) -> None:
    """Compare two runs: the first update that differs, and in which field.

    Each is the folder or the file of one run; FOLDER#2 is the second run of a folder. What a record does
    not hold is not compared, and said so.

    The exit status is 0 where nothing that was compared differs, 1 where something does, and 2 where the
    input cannot be used or nothing could be compared.
    """
    form = format_ or format_of(output, outputs.FORMATS, "text")
    settings = log_settings(arguments, columns)
    with missing_packages():
        importlib.import_module(f"{outputs.__name__}.{outputs.FORMATS[form]}")
        compared = _compared((run_a, run_b), settings, memory, by, tolerance, charts=form == "html")
        text = outputs.rendered(compared, form)
    write(text, output)
    if not compared.judged:
        raise SystemExit(2)
    raise SystemExit(0 if compared.same else 1)


def _compared(
    places: Sequence[Path | str],
    settings: Settings,
    memory: str | None,
    by: By | None,
    tolerance: float,
    *,
    charts: bool,
) -> Comparison:
    from accumaudit.comparison.sides import unnumbered

    ledger = open_ledger(map(unnumbered, places), settings, memory_limit=memory)
    try:
        return compared(ledger, places, by, tolerance, charts=charts)
    finally:
        ledger.close()


def compared(
    ledger: Ledger,
    places: Sequence[Path | str],
    by: By | None,
    tolerance: float = TOLERANCE,
    *,
    charts: bool,
) -> Comparison:
    """Compare the two runs at these places, of a ledger that was read from both."""
    import duckdb

    from accumaudit.comparison.comparing import ComparisonError, compare
    from accumaudit.comparison.sides import run_of
    from accumaudit.engine.rule import sql_reason
    from accumaudit.ledger.sources import LedgerError
    from accumaudit.outputs.words import printable

    try:
        with progress("comparing them"):
            a, b = (run_of(ledger, one) for one in places)
            return compare(ledger, a, b, by=by, tolerance=tolerance, charts=charts)
    except (LedgerError, ComparisonError) as error:
        raise StopError(printable(str(error))) from None
    except duckdb.Error as error:
        raise StopError(f"the runs cannot be compared: {sql_reason(error)}") from None
