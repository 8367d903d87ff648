"""Short ways to ask the tables of a ledger, and to find or make its lines, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accumaudit.ledger.reader import Ledger
from tests.reading import read
from tests.records import build_run, to_line

Rows = list[tuple[Any, ...]]


def rows(ledger: Ledger, sql: str) -> Rows:
    """What a query over the tables of an open ledger gives."""
    return ledger.connection.execute(sql).fetchall()


def query(path: Path | list[Path], sql: str) -> Rows:
    """What a query over the tables of one path, or of several, gives."""
    ledger = read(*(path if isinstance(path, list) else [path]))
    return ledger.connection.execute(sql).fetchall()


def file_of(run: Path, rank: int = 0) -> Path:
    """The file of one rank."""
    return next(run.glob(f"rank-*/{rank:05d}.*"))


def line_of(**fields: Any) -> str:
    """An update that is good but for the given fields; a field given as ... is left out."""
    record = build_run(1, 1)[0][1] | fields
    return to_line({name: value for name, value in record.items() if value is not ...})


def windows(run: Path, columns: str) -> Rows:
    """Some columns of all windows, in their order."""
    return query(run, f"SELECT {columns} FROM windows ORDER BY run_id, launch, optimizer, attempt_id")


def windows_by_run(folder: Path, columns: str) -> dict[str, Rows]:
    """Some columns of all windows of each run below a folder: many take no longer to read than one."""
    found: dict[str, Rows] = {}
    for run_id, *values in windows(folder, f"run_id, {columns}"):
        found.setdefault(run_id, []).append(tuple(values))
    return found


def column(run: Path, name: str) -> list[Any]:
    """One column of all windows."""
    return [value for (value,) in windows(run, name)]


def by_rank(*fields: Mapping[str, Any]) -> dict[str, Any]:
    """An attempt of which the ranks, from 0, have fields of their own."""
    return {"on": dict(enumerate(fields))}
