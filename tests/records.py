"""The builder of records, under the name by which the tests know it."""

from accumaudit.testing.records import START, Record, build_run, events, to_line, write_records, write_run

__all__ = ["START", "Record", "build_run", "events", "to_line", "write_records", "write_run"]
