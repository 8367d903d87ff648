"""Short ways to ask the tables of one run, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accumaudit.ledger.reader import read_ledger

Rows = list[tuple[Any, ...]]


def query(run: Path, sql: str) -> Rows:
    """What a query over the run's tables gives."""
    with read_ledger([run]) as ledger:
        return ledger.connection.execute(sql).fetchall()


def windows(run: Path, columns: str) -> Rows:
    """Some columns of all windows, in their order."""
    return query(run, f"SELECT {columns} FROM windows ORDER BY run_id, launch, optimizer, attempt_id")


def column(run: Path, name: str) -> list[Any]:
    """One column of all windows."""
    return [value for (value,) in windows(run, name)]


def by_rank(*fields: Mapping[str, Any]) -> dict[str, Any]:
    """An attempt of which the ranks, from 0, have fields of their own."""
    return {"on": dict(enumerate(fields))}
