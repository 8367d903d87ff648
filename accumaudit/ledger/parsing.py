"""Keeps parsed SQL: the same long texts are run over one ledger after the other."""

from __future__ import annotations

from typing import Final

import duckdb

LIMIT: Final = 1000
"""Texts that are kept: each rule has two or three."""

_kept: dict[str, list[duckdb.Statement]] = {}


def parsed(connection: duckdb.DuckDBPyConnection, text: str) -> list[duckdb.Statement]:
    """The statements of a text, which any connection may run; parsed by this one, once in a process."""
    statements = _kept.get(text)
    if statements is None:
        statements = connection.extract_statements(text)
        if len(_kept) >= LIMIT:
            _kept.clear()
        _kept[text] = statements
    return statements


def run(connection: duckdb.DuckDBPyConnection, text: str, values: object = None) -> duckdb.DuckDBPyConnection:
    """Run a text that is often run: one statement with values, or several without."""
    for statement in parsed(connection, text):
        connection.execute(statement, values)
    return connection
