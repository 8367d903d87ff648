"""What a bundled rule says of a hand-made run, row by row: true, false or unknown."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from accumaudit.engine.catalogue import Catalogue, load_rules
from accumaudit.ledger.reader import read_ledger


@dataclass(frozen=True, slots=True)
class Row:
    """One row that a rule returned."""

    attempt: int | None
    optimizer: int | None
    rank: int | None
    fault: bool | None
    severity: str
    observed: float | None
    expected: float | None
    message: str


@functools.cache
def _catalogue() -> Catalogue:
    return load_rules()


def judge(code: str, run: Path) -> list[Row]:
    """The rows of one rule over one run, in the order of attempts and ranks."""
    rule = _catalogue()[code]
    ledger = read_ledger([run])
    try:
        cursor = ledger.connection.execute(rule.sql, dict(rule.params) or None)
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]
    finally:
        ledger.connection.close()
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


def faults(code: str, run: Path) -> list[bool | None]:
    """The verdicts alone."""
    return [row.fault for row in judge(code, run)]


def the_fault(code: str, run: Path) -> Row:
    """The only faulty row."""
    (row,) = [row for row in judge(code, run) if row.fault]
    return row
