"""What a rule says of a hand-made run, under the name by which the tests know it."""

from accumaudit.testing.judging import Row, faults, judge, the_fault

__all__ = ["Row", "faults", "judge", "the_fault"]
