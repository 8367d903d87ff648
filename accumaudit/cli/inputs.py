"""What several verbs read: the rules and the runs, with errors for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from accumaudit.cli import StopError

if TYPE_CHECKING:
    from accumaudit.engine.catalogue import Catalogue
    from accumaudit.ledger.reader import Ledger

SHOWN: Final = 5
"""Unreadable lines that are named one by one."""


def load_catalogue(folders: Sequence[Path]) -> Catalogue:
    """The bundled rules and those of further folders."""
    from accumaudit.engine.catalogue import load_rules
    from accumaudit.engine.rule import RuleError

    for folder in folders:
        if not folder.is_dir():
            raise StopError(f"{folder}: this folder of rules does not exist")
    try:
        return load_rules(*folders)
    except RuleError as error:
        raise StopError(str(error)) from None


def open_ledger(paths: Iterable[Path]) -> Ledger:
    """Read the runs; say on stderr which lines were left out."""
    import duckdb

    from accumaudit.engine.rule import sql_reason
    from accumaudit.ledger.reader import LedgerError, read_ledger
    from accumaudit.outputs.words import printable

    try:
        with busy("reading the records"):
            ledger = read_ledger(list(paths))
    except LedgerError as error:
        raise StopError(printable(str(error))) from None
    except duckdb.Error as error:
        raise StopError(f"the records cannot be read: {sql_reason(error)}") from None
    for line in ledger.unreadable[:SHOWN]:
        what = f"warning: {line.file}:{line.line}: {line.why}; the line was left out"
        click.echo(printable(what), err=True)
    if len(ledger.unreadable) > SHOWN:
        click.echo(f"warning: {len(ledger.unreadable) - SHOWN:,} more lines were left out", err=True)
    return ledger


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Say on a terminal what takes so long."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield
