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
    from accumaudit.ledger.reader import Ledger


def wanted_rules(settings: Settings) -> Catalogue:
    """The rules with their thresholds; an error where the settings name one that there is not."""
    catalogue = load_catalogue(settings.rules)
    from accumaudit.engine.catalogue import SelectionError

    try:
        catalogue = catalogue.with_params(settings.params)
        catalogue.matching((*settings.select, *settings.ignore))
    except SelectionError as error:
        raise click.UsageError(str(error)) from None
    return catalogue


def judge(ledger: Ledger, catalogue: Catalogue, settings: Settings) -> AuditReport:
    """Run the rules."""
    import duckdb

    from accumaudit.engine.judge import audit
    from accumaudit.engine.rule import sql_reason

    try:
        with progress("judging them"):
            return audit(ledger, catalogue, select=settings.select, ignore=settings.ignore)
    except duckdb.Error as error:
        raise StopError(f"the records cannot be judged: {sql_reason(error)}") from None


def exit_status(report: AuditReport, fail_on: str) -> int:
    """0 where nothing is at or above `fail_on`, 1 where something is, 2 where a rule is broken."""
    if report.summary()["broken"]:
        return 2
    worst = report.worst()
    return int(worst is not None and FAIL_ON.index(worst) <= FAIL_ON.index(fail_on) and fail_on != "never")
