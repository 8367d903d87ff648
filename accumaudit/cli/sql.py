"""`accumaudit sql`: a question to the tables that the rules speak of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accumaudit.cli import Choice, StopError
from accumaudit.cli.inputs import log_options, log_settings, open_ledger, place

if TYPE_CHECKING:
    import duckdb


@click.command("sql")
@click.argument("path", type=place)
@click.argument("query")
@click.option("--format", "format_", type=Choice(("text", "json")), default="text", show_default=True)
@log_options
def command(
    path: Path | str, query: str, format_: str, arguments: Path | None, columns: Mapping[str, str]
) -> None:
    """Ask the tables of a run one question in SQL.

    The tables are runs, updates, microbatches, windows, marks, duplicates, superseded, schedules and
    positions.
    `DESCRIBE windows` lists the columns of one. Nothing outside them can be read or written.
    """
    settings = log_settings(arguments, columns)
    ledger = open_ledger([path], settings)
    try:
        names, rows = ask(ledger.connection, query)
    finally:
        ledger.close()
    if format_ == "json":
        from accumaudit.outputs.json_report import finite

        records = [dict(zip(names, row, strict=True)) for row in rows]
        click.echo(json.dumps(finite(records), indent=2, default=str))
        return
    for line in _table(names, rows):
        click.echo(line)


def ask(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[list[str], list[tuple[object, ...]]]:
    """The names of the columns and the rows; the query is one statement."""
    import duckdb

    from accumaudit.engine.rule import sql_reason

    try:
        statements = connection.extract_statements(query)
        if len(statements) != 1:
            raise click.UsageError(f"one statement can be asked at a time; this is {len(statements)}")
        connection.execute(statements[0])
        names = [column[0] for column in connection.description or []]
        return names, connection.fetchall()
    except duckdb.Error as error:
        raise StopError(sql_reason(error)) from None


def _table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    from accumaudit.outputs.words import printable

    cells = [[printable(name) for name in names]]
    cells += [[printable("" if value is None else str(value)) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    rule = "  ".join("-" * width for width in widths)
    return [line.rstrip() for line in (lines[0], rule, *lines[1:])]
