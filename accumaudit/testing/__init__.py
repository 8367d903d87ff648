"""For tests: records a training, asserts what an audit says of it, builds ledgers by hand, runs one rule.

    from accumaudit.testing import assert_clean

    def test_the_loop_trains_what_was_meant():
        assert_clean(lambda log_dir: train(small_config, log_dir=log_dir))

Plain functions, for pytest or any other runner. Only what records a training imports torch.
"""

from accumaudit.testing.asserting import Run, assert_clean, assert_finds
from accumaudit.testing.capturing import Captured, NothingRecordedError, Training, capture, record
from accumaudit.testing.judging import Row, faults, judge, the_fault
from accumaudit.testing.records import START, Record, build_run, events, to_line, write_records, write_run

__all__ = [
    "START",
    "Captured",
    "NothingRecordedError",
    "Record",
    "Row",
    "Run",
    "Training",
    "assert_clean",
    "assert_finds",
    "build_run",
    "capture",
    "events",
    "faults",
    "judge",
    "record",
    "the_fault",
    "to_line",
    "write_records",
    "write_run",
]
