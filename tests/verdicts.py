"""What a rule says of a hand-made run, which is read once for several questions."""

from __future__ import annotations

from pathlib import Path

from accumaudit.testing import judging
from accumaudit.testing.judging import Row
from tests.reading import read

__all__ = ["Row", "faults", "judge", "the_fault"]


def judge(rule: str, run: Path) -> list[Row]:
    """The rows of one rule over one run, in the order of attempts and ranks."""
    return judging.judge(rule, read(run))


def faults(rule: str, run: Path) -> list[bool | None]:
    """The verdicts alone."""
    return judging.faults(rule, read(run))


def the_fault(rule: str, run: Path) -> Row:
    """The only faulty row."""
    return judging.the_fault(rule, read(run))
