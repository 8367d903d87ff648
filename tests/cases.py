"""One run of many cases: reading a ledger takes longer than judging it, so a rule's cases share one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.records import build_run, write_records
from tests.verdicts import Row, judge


def run_of_cases(
    folder: Path, cases: Mapping[str, Sequence[Mapping[str, Any]]], ranks: int = 1, **run_fields: Any
) -> Path:
    """One run in which each case is an optimizer of its own."""
    records = build_run(0, ranks, **run_fields)
    for optimizer, updates in enumerate(cases.values()):
        lines = build_run([{**update, "optimizer": optimizer} for update in updates], ranks, **run_fields)
        for rank, own in records.items():
            own[-1:-1] = lines[rank][1:-1]
    return write_records(folder / "run", records)


def rows_by_case(code: str, run: Path, cases: Iterable[str]) -> dict[str, list[Row]]:
    """The rows of each case."""
    rows = judge(code, run)
    return {case: [row for row in rows if row.optimizer == number] for number, case in enumerate(cases)}


def by_case(code: str, run: Path, cases: Iterable[str]) -> dict[str, list[bool | None]]:
    """The verdicts on each case."""
    return {case: [row.fault for row in rows] for case, rows in rows_by_case(code, run, cases).items()}
