"""What one rule says of a run, row by row: true, false or unknown."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

import duckdb

from accumaudit.engine.catalogue import Catalogue, load_rules
from accumaudit.engine.rule import Rule, read_rule
from accumaudit.opened import Ledger


@dataclass(frozen=True, slots=True)
class Row:
    """One row that a rule returned."""

    attempt: int | None
    optimizer: int | None
    rank: int | None
    fault: bool | None
    """None where the record does not decide."""
    severity: str
    observed: float | None
    expected: float | None
    message: str


def judge(rule: str | os.PathLike[str], run: str | os.PathLike[str] | Ledger) -> list[Row]:
    """The rows of one rule over one run, in the order of attempts and ranks.

    Args:
        rule: the code or name of a bundled rule, or the file of a rule (ending in .sql).
        run: the run's folder, or an open ledger.

    Raises:
        SelectionError: no rule has this name or code.
        RuleError: the file is no rule; the text names file and line.
        LedgerError: the run cannot be read.
    """
    known = _rule(rule)
    if isinstance(run, Ledger):
        return _rows(known, run.connection)
    with Ledger.open(run) as ledger:
        return _rows(known, ledger.connection)


def faults(rule: str | os.PathLike[str], run: str | os.PathLike[str] | Ledger) -> list[bool | None]:
    """The verdicts alone."""
    return [row.fault for row in judge(rule, run)]


def the_fault(rule: str | os.PathLike[str], run: str | os.PathLike[str] | Ledger) -> Row:
    """The only faulty row.

    Raises:
        AssertionError: there is none, or more than one; the text lists them.
    """
    rows = judge(rule, run)
    found = [row for row in rows if row.fault]
    if len(found) == 1:
        return found[0]
    told = "".join(f"\n  attempt {row.attempt}: {row.message}" for row in found)
    raise AssertionError(f"{rule} found {len(found)} faults in {len(rows)} rows, not one{told}")


@functools.cache
def _catalogue() -> Catalogue:
    return load_rules()


def _rule(rule: str | os.PathLike[str]) -> Rule:
    file = Path(rule)
    if file.suffix != ".sql":
        return _catalogue().find(str(rule))
    with duckdb.connect() as parser:
        return read_rule(file, parser)


def _rows(rule: Rule, connection: duckdb.DuckDBPyConnection) -> list[Row]:
    cursor = connection.execute(rule.sql, dict(rule.params) or None)
    names = [column[0] for column in cursor.description]
    rows = [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]
    found = [
        Row(
            attempt=row["attempt_id"],
            optimizer=row["optimizer"],
            rank=row["rank"],
            fault=row["fault"],
            severity=row.get("severity") or rule.severity,
            observed=row["observed"],
            expected=row["expected"],
            message=row["message"],
        )
        for row in rows
    ]
    return sorted(found, key=lambda row: (row.attempt or 0, -1 if row.rank is None else row.rank))
