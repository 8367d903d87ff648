"""Tests of accumaudit; `tests.records` and `tests.processes` help all of them."""
