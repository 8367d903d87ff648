"""What the verbs that judge share: which rules, the audit itself, and the exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from accumaudit.cli import StopError
from accumaudit.cli.config import FAIL_ON, Settings
from accumaudit.cli.inputs import load_catalogue
from accumaudit.cli.progress import progress

if TYPE_CHECKING:
    from accumaudit.engine.catalogue import Catalogue
    from accumaudit.engine.findings import AuditReport
    from accumaudit.engine.ignoring import Baseline, Ignore
    from accumaudit.ledger.reader import Ledger


def wanted_rules(settings: Settings) -> Catalogue:
    """The rules with their thresholds; an error where the settings name one that there is not."""
    catalogue = load_catalogue(settings.rules)
    from accumaudit.engine.catalogue import SelectionError

    try:
        catalogue = catalogue.with_params(settings.params)
        catalogue.matching((*settings.select, *settings.ignore))
        catalogue.matching(one.rule for one in settings.ignores)
    except SelectionError as error:
        raise click.UsageError(str(error)) from None
    _baseline(settings)
    return catalogue


def _baseline(settings: Settings) -> Baseline | None:
    from accumaudit.engine.ignoring import IgnoreError, read_baseline

    try:
        return None if settings.baseline is None else read_baseline(settings.baseline)
    except IgnoreError as error:
        raise StopError(str(error)) from None


def judge(ledger: Ledger, catalogue: Catalogue, settings: Settings) -> AuditReport:
    """Run the rules."""
    import duckdb

    from accumaudit.engine.judge import audit
    from accumaudit.engine.rule import sql_reason

    try:
        with progress("judging them"):
            ignore: list[str | Ignore] = [*settings.ignore, *settings.ignores]
            return audit(
                ledger, catalogue, select=settings.select, ignore=ignore, baseline=_baseline(settings)
            )
    except duckdb.Error as error:
        raise StopError(f"the records cannot be judged: {sql_reason(error)}") from None


def tell_unused(report: AuditReport) -> None:
    """Say on stderr what was to be ignored and is not there."""
    from accumaudit.outputs.words import printable

    for line in report.unused:
        click.echo(printable(f"note: {line}"), err=True)


def exit_status(report: AuditReport, fail_on: str) -> int:
    """0 where nothing is at or above `fail_on`, 1 where something is, 2 where a rule is broken."""
    if report.summary()["broken"]:
        return 2
    worst = report.worst()
    return int(worst is not None and FAIL_ON.index(worst) <= FAIL_ON.index(fail_on) and fail_on != "never")
