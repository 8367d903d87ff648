"""Reads texts in which each update has a line of its own, many at once; imported late, as it needs Arrow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from accumaudit.importers.reading import grep
from accumaudit.importers.reading.fields import counts_of, numbers_of, where_any
from accumaudit.importers.reading.log import Log
from accumaudit.importers.records import Records
from accumaudit.importers.restarts import AHEAD, with_restarts

STEP: Final = "step"
PLANNED: Final = "planned"
"""Names of numbers that are no fields: the step as it is logged, and the last that is planned."""

HELD: Final = 10_000
"""Other lines that wait for the next record."""

Begin = Callable[[int | None, int | None], None]
"""Opens a launch; is told after how many updates it goes on, and how many are planned."""

Tell = Callable[[int, str], None]
"""Takes a line that is no record, in the launch of the record after it."""


class StepLines:
    """The lines of one log; steps that start again open another launch."""

    def __init__(
        self,
        records: Records,
        *,
        record: str,
        fields: Mapping[str, str],
        begin: Begin,
        counts_from_0: bool,
        told: str | None = None,
        tell: Tell = lambda *_: None,
    ) -> None:
        """Say what the lines are; patterns are in the dialect of RE2.

        Args:
            record: found in each line of an update.
            fields: for each number, what it is the group `v` of; the step is one of them.
            begin: opens a launch.
            counts_from_0: the first update has the step 0.
            told: found in the other lines that matter.
            tell: takes them.
        """
        self.last_line = self.last_attempt = 0
        """Of the last record."""
        self.rates: dict[int, float | None] = {}
        """Rates that other lines tell of some steps."""
        self._records = records
        self._record, self._told = record, told
        self._fields = fields
        self._begin, self._tell = begin, tell
        self._offset = int(counts_from_0)
        self._begun = False
        self._before: list[int] = []
        """The last attempts of the block before."""
        self._waiting: deque[tuple[int, str]] = deque()
        """Lines that are no records, after the last that is one."""

    def read(self, log: Log, constants: Callable[[], Mapping[str, Any]] = dict) -> None:
        """Give all records.

        Args:
            constants: fields that all updates have from here on.

        Raises:
            LogError: the log cannot be read any further.
        """
        for numbers, lines in grep.line_arrays(log):
            is_record = pc.match_substring_regex(lines, self._record)
            if self._told is not None:
                self._waiting += _told(numbers, lines, is_record, self._told)
            if is_record.true_count:
                self._add(self._columns(numbers.filter(is_record), lines.filter(is_record)), constants)
            if len(self._waiting) > HELD:
                self._tell_until(None)
        self._tell_until(None)

    def _columns(self, numbers: pa.Array, lines: pa.Array) -> grep.Columns:
        columns = {name: _numbers(lines, pattern) for name, pattern in self._fields.items()}
        for name in (STEP, PLANNED):
            if name in columns:
                columns[name] = counts_of(columns[name])
        columns["seq"] = numbers
        sound = pc.is_valid(columns[STEP])
        if sound.false_count:
            for line in numbers.filter(pc.invert(sound)).to_pylist():
                self._records.damage(line, "its step is no count of updates")
            columns = {name: values.filter(sound) for name, values in columns.items()}
        return columns

    def _add(self, columns: grep.Columns, constants: Callable[[], Mapping[str, Any]]) -> None:
        steps = columns[STEP].to_pylist()
        attempts = [step + self._offset for step in steps]
        columns["reported_global_step"], columns["attempt_id"] = (
            columns.pop(STEP),
            pa.array(attempts, pa.int64()),
        )
        planned = columns.pop(PLANNED, None)
        if "grad_norm_before_clip" in columns:
            columns["grad_norm_before_scope"] = where_any(columns["grad_norm_before_clip"], "global")
        lines = columns["seq"].to_pylist()
        for start, stop, resumed in self._launches(attempts):
            # Lines after the last record of a launch belong to what follows: evaluations precede updates.
            if resumed is not None or not self._begun:
                self._begun = True
                self._tell_until(self.last_line)
                plan = None if planned is None else planned[start].as_py()
                self._begin(attempts[start] - 1 if resumed else None, plan)
            self._tell_until(lines[stop - 1])
            part = grep.cut(columns, start, stop)
            if self.rates:
                told = pa.array([self.rates.get(step) for step in steps[start:stop]], pa.float64())
                part["learning_rate"] = pc.coalesce(part["learning_rate"], told)
            shared = {name: [value] * (stop - start) for name, value in constants().items()}
            self._records.extend({**part, **shared})
            self.last_line, self.last_attempt = lines[stop - 1], attempts[stop - 1]

    def _launches(self, attempts: list[int]) -> Iterator[tuple[int, int, int | None]]:
        """Where launches begin and end among the records of a block.

        With each, whether a run starts again there: None where it does not, 0 where it begins anew.
        """
        known = len(self._before)
        together = self._before + attempts
        self._before = together[-AHEAD:]
        if all(earlier < later for earlier, later in pairwise(together)):
            if attempts:
                yield 0, len(attempts), None
            return
        starts = {
            place - known: resumed
            for place, (_, resumed) in enumerate(with_restarts(together, lambda attempt: attempt))
            if resumed is not None and place >= known
        }
        places = sorted({0, *starts})
        for start, stop in zip(places, [*places[1:], len(attempts)], strict=True):
            yield start, stop, starts.get(start)

    def _tell_until(self, line: int | None) -> None:
        """Tell the lines up to one, all where it is None."""
        while self._waiting and (line is None or self._waiting[0][0] <= line):
            self._tell(*self._waiting.popleft())


def _told(numbers: pa.Array, lines: pa.Array, is_record: pa.Array, pattern: str) -> Iterator[tuple[int, str]]:
    """The other lines that matter."""
    found = pc.and_(pc.invert(is_record), pc.match_substring_regex(lines, pattern))
    if found.true_count:
        pairs = zip(numbers.filter(found).to_pylist(), lines.filter(found).to_pylist(), strict=True)
        for number, line in pairs:
            yield number, line[: grep.LONGEST].rstrip("\r\n")


def _numbers(lines: pa.Array, pattern: str) -> pa.Array:
    """The numbers that a pattern finds; null where it finds none."""
    found = pc.extract_regex(lines, pattern)
    if found.null_count == len(found):
        return pa.nulls(len(found), pa.float64())
    return numbers_of(pc.struct_field(found, "v"))
