"""Collects what an importer finds, as records of the ledger's schema."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from accumaudit.importers.reading.log import LogError
from accumaudit.importers.reading.values import LARGEST
from accumaudit.ledger.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    import pyarrow as pa

FLUSHED: Final = 50_000
"""Rows after which they are given on."""

LONGEST_INTERVAL: Final = 10_000
"""Attempts between two records; larger distances are jumps."""

LISTED: Final = 100
"""Damaged lines of a file that are named one by one."""


MOST_DAMAGED: Final = 50_000
"""Damaged lines of a file above which there must be records in it too."""

MOST_LAUNCHES: Final = 128
"""Runs and restarts of one file above which its lines are in disorder."""


class Records:
    """The records of one log, in the order in which they stand there.

    A log holds one run or several, one after the other: `begin` opens the next. Records may come before
    it, and then belong to a first one. Each record names the line on which it stands.
    """

    def __init__(self, sink: Callable[[pa.Table], None]) -> None:
        self.count = 0
        """Records so far, those that are no updates included."""
        self.damaged: list[tuple[int | None, str]] = []
        """Lines that hold no whole record, and why."""
        self._sink = sink
        self._rows: list[dict[str, Any]] = []
        self._facts: dict[str, Any] = {}
        self._launches = 0
        self._started_at = 0.0
        self._open = False
        self._more_damaged = 0
        self._first_step = self._last_step = 0
        self._distances: Counter[int] = Counter()

    def begin(self, **facts: Any) -> None:
        """A run starts here, or goes on after a restart, which `resumed_from_update` tells.

        Raises:
            LogError: far too many do.
        """
        self._close_launch()
        if self._launches == MOST_LAUNCHES:
            raise LogError(
                f"more than {MOST_LAUNCHES} runs and restarts, as if its lines were in disorder; "
                "what follows was not read"
            )
        self._launches += 1
        self._open = True
        self._facts = {}
        self.know(**facts)

    @property
    def begun(self) -> bool:
        """Whether a run has begun."""
        return self._open

    def know(self, **facts: Any) -> None:
        """Something is known of the run as a whole: fields of the record `run`. What was known stays."""
        for name, value in facts.items():
            if value is not None:
                self._facts.setdefault(name, value)

    def update(self, line: int, step: int, **fields: Any) -> None:
        """An attempt to update, the `step`-th since the run began, counted from 1."""
        if not 0 <= step <= LARGEST:
            self.damage(line, f"the step {step} is no count of updates")
            return
        self._add(line, {"record": "update", "attempt_id": step, "optimizer": 0, **fields})
        self._step(step)

    def mark(self, line: int, kind: str, **fields: Any) -> None:
        """Something else than an update: `eval`, `epoch_end`, `checkpoint`, `close` ..."""
        self._add(line, {"record": "mark", "kind": kind, **fields})

    def note(self, line: int, kind: str, **fields: Any) -> None:
        """A mark that is no record of the log but follows from its text: its end, a checkpoint."""
        self.mark(line, kind, **fields)
        self.count -= 1

    def extend(self, columns: Mapping[str, Any]) -> None:
        """Many updates at once, column by column: `seq` (the lines), `attempt_id`, and more fields.

        Args:
            columns: sequences, or arrays of Arrow, of one length.
        """
        count = len(columns["seq"])
        if not count:
            return
        self._begun()
        self._flush()
        self.count += count
        from accumaudit.importers import arrow

        self._steps(arrow.listed(columns["attempt_id"]))
        self._sink(arrow.from_columns(columns, {"record": "update", "optimizer": 0, **self._whose()}))

    def damage(self, line: int | None, why: str) -> None:
        """A line, or the file where it is None, that could not be read whole."""
        if line is None or len(self.damaged) < LISTED:
            self.damaged.append((line, why))
            return
        self._more_damaged += 1

    def given_up(self) -> bool:
        """Whether hardly any line is a record, so that reading on is no use; told once, when it is so."""
        if self._more_damaged <= max(MOST_DAMAGED, 10 * self.count):
            return False
        self.damage(None, "hardly any of its lines is a record; what follows was not read")
        return True

    def finish(self) -> None:
        """Nothing more is coming."""
        self._close_launch()
        self._flush()
        if self._more_damaged:
            self.damaged.append((None, f"{self._more_damaged:,} more lines are no records"))

    def _step(self, step: int) -> None:
        """Count the distances between records, to know how many attempts make one record."""
        distance = step - self._last_step
        if self._last_step == 1 and distance > 1:
            distance += 1  # the first step was logged too, and then those that the interval divides
        if self._last_step == 0:
            self._first_step = step
        elif 0 < distance < LONGEST_INTERVAL:
            self._distances[distance] += 1
        self._last_step = max(self._last_step, step)  # the writer in front, where there are two

    def _steps(self, steps: Sequence[int]) -> None:
        """The same of many, at once where they go up."""
        distances = Counter(map(operator.sub, steps[2:], steps[1:]))
        if min(distances, default=0) <= 0 or steps[1] <= self._last_step:
            for step in steps:
                self._step(step)
            return
        for step in steps[:2]:
            self._step(step)
        for distance, count in distances.items():
            if distance < LONGEST_INTERVAL:
                self._distances[distance] += count
        self._last_step = steps[-1]

    def _interval(self) -> int:
        """Attempts from one record to the next, as most are; a single record may be the first of its kind."""
        if not self._distances:
            return self._first_step if self._first_step < LONGEST_INTERVAL else 1
        return max(self._distances, key=lambda one: (self._distances[one], -one))

    def _whose(self) -> dict[str, Any]:
        return {"launch": f"log-{self._launches}", "rank": 0}

    def _begun(self) -> None:
        if not self._open:
            self.begin()

    def _add(self, line: int, row: dict[str, Any]) -> None:
        self._begun()
        self.count += 1
        self._rows.append({"seq": line, **self._whose(), **row})
        if len(self._rows) >= FLUSHED:
            self._flush()

    def _close_launch(self) -> None:
        if not self._open:
            return
        started_at = self._facts.pop("started_at", None)
        # Launches are in the order of the file, whatever its clock says.
        self._started_at = max(started_at or 0.0, self._started_at + 1.0)
        interval = self._interval()
        if interval > 1:
            self.know(recorded_every=interval)
        self._distances.clear()
        self._first_step = self._last_step = 0
        known = {"recorded_ranks": [0], "schema": SCHEMA_VERSION, "started_at": self._started_at}
        self._rows.append({"record": "run", **self._whose(), **known, **self._facts})
        self._open = False

    def _flush(self) -> None:
        from accumaudit.importers import arrow

        rows, self._rows = self._rows, []
        if rows:
            self._sink(arrow.from_rows(rows))
