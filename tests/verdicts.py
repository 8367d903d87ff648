"""What a rule says of a hand-made run, which is read once for several questions."""

from __future__ import annotations

from pathlib import Path

from accumaudit.engine.catalogue import load_rules
from accumaudit.testing import judging
from accumaudit.testing.judging import Row
from tests.reading import read

__all__ = ["Row", "faults", "faults_by_run", "judge", "the_fault"]


def judge(rule: str, run: Path) -> list[Row]:
    """The rows of one rule over one run, in the order of attempts and ranks."""
    return judging.judge(rule, read(run))


def faults(rule: str, run: Path) -> list[bool | None]:
    """The verdicts alone."""
    return judging.faults(rule, read(run))


def faults_by_run(code: str, folder: Path) -> dict[str, list[bool | None]]:
    """The verdicts on each run below a folder: many take no longer to read than one."""
    ledger = read(folder)
    rule = load_rules()[code]
    found: dict[str, list[bool | None]] = {run_id: [] for run_id in ledger.runs["run_id"]}
    order = "ORDER BY run_id, attempt_id, rank NULLS FIRST"
    rows = ledger.connection.execute(
        f"SELECT run_id, fault FROM ({rule.query}\n) {order}", dict(rule.params) or None
    )
    for run_id, fault in rows.fetchall():
        found[run_id].append(fault)
    return found


def the_fault(rule: str, run: Path) -> Row:
    """The only faulty row."""
    return judging.the_fault(rule, read(run))
