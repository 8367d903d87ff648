"""The text that fairseq prints, simple or in JSON.

It prints a record after an update alone; an attempt that overflows leaves a note instead, and no number.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from accumaudit.importers import hyperparameters
from accumaudit.importers.format import Format
from accumaudit.importers.formats import fairseq_config
from accumaudit.importers.reading.log import Log
from accumaudit.importers.reading.values import seconds
from accumaudit.importers.records import Records

if TYPE_CHECKING:
    from accumaudit.importers.reading.grep import Columns

_TOLD: Final = (
    r"gradient overflow detected|oaded checkpoint .*@ \d|done training in|Namespace\(|\{'_name'|epoch +\d+ \|"
    r"|SIGTERM|CANCELLED AT|^[^{]{0,80}Traceback \(most"
)
"""What is told of a run; for RE2."""

_OVERFLOW: Final = re.compile(r"overflow detected, ignoring gradient, setting loss scale to: (\S+)")
_LOADED: Final = re.compile(r"oaded checkpoint .*@ (\d{1,15}) updates")
_SUMMARY: Final = re.compile(r"\bepoch +(\d{1,9}) \|(.*)\bnum_updates (\d{1,15})")
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d{3})?)")


def read(log: Log, records: Records) -> None:
    """Give each record of `train_inner`, and what the text tells of its runs."""
    from accumaudit.importers.formats import fairseq_lines
    from accumaudit.importers.reading import grep

    columns = partial(fairseq_lines.columns, records=records)
    grep.follow(log, _Reader(records, log), fairseq_lines.RECORD, _TOLD, columns)


class _Reader:
    """Follows the runs of a log: where one begins, goes on, and ends."""

    def __init__(self, records: Records, log: Log) -> None:
        self._records = records
        self._log = log
        self._facts: dict[str, Any] = {}
        self._loaded: int | None = None
        self._running = False
        self._line = self._updates = 0
        self._interval = 1
        self._before = self._noted = 0
        """Overflows of earlier launches, and of this one."""
        self._history: dict[int, int] = {}
        """The overflows up to the record after one of so many updates, where there were more."""
        self._note = ""
        """The last note of an overflow: several ranks print the same."""
        self._finished: bool | None = None

    def tell(self, line: int, text: str) -> None:
        """A line that is no record."""
        if overflow := _OVERFLOW.search(text):
            self._overflow(text, overflow[1])
        elif loaded := _LOADED.search(text):
            self._end()
            self._loaded = int(loaded[1])
        elif "done training in" in text:
            self._finished = True
        elif summary := _SUMMARY.search(text):
            self._summary(line, int(summary[1]), summary[2], int(summary[3]))
        elif "Namespace(" in text or "'_name'" in text:
            self._end()
            self._facts |= fairseq_config.facts(text)
        elif self._running and self._finished is None and "epoch" not in text:
            self._finished = False

    def add(self, columns: Columns) -> None:
        """Records as they follow each other; where updates go back, the run was started again."""
        from accumaudit.importers.reading import grep

        for rows, updates in grep.rising(columns, "optimizer_update_id"):
            self._add(rows, updates)

    def _add(self, rows: Columns, updates: list[int]) -> None:
        if self._running and updates[0] < self._updates:
            self._end()
            self._loaded = max(updates[0] - self._interval, 0)
        if not self._running:
            self._begin(rows["time"][0].as_py())
        overflows = self._before + self._noted
        self._records.extend(
            {
                **rows,
                "attempt_id": [done + overflows for done in updates],
                "optimizer_step_skipped": [False] * len(updates),
                "skip_evidence": ["log"] * len(updates),
            }
        )
        known = [self._updates, *updates]
        self._interval = max(known[-1] - known[-2], 1)
        self._line, self._updates, self._finished = rows["seq"][-1].as_py(), updates[-1], None

    def _overflow(self, text: str, scale: str) -> None:
        time = _time(text)
        note = f"{time} {scale}"
        if time is None or note != self._note:
            self._noted += 1
            self._history[self._updates] = self._before + self._noted
        self._note = note

    def _summary(self, line: int, epoch: int, text: str, updates: int) -> None:
        if self._running:
            kind = "eval" if "valid" in text else "epoch_end"
            self._records.note(line, kind, attempt_id=updates + self._before + self._noted, epoch=epoch)

    def _begin(self, started_at: float | None) -> None:
        loaded = self._loaded or 0
        earlier = [overflows for updates, overflows in self._history.items() if updates < loaded]
        self._before = max(earlier, default=0) if loaded else 0
        self._records.begin(
            runtime="fairseq",
            started_at=started_at,
            resumed_from_update=loaded + self._before if loaded else None,
            **self._facts,
        )
        self._records.know(**hyperparameters.declared(self._log, self._facts.get("planned_updates")))
        self._running = True

    def _end(self) -> None:
        if self._running:
            planned = self._facts.get("planned_updates")
            if planned is not None and self._updates >= planned:
                self._finished = True
            if self._finished is not None:
                last = self._updates + self._before + self._noted
                self._records.note(self._line, "close", attempt_id=last, finished=self._finished)
            self._loaded, self._finished, self._noted = None, None, 0
            self._running, self._updates = False, 0

    def finish(self) -> None:
        """The log is at its end."""
        self._end()


def _time(text: str) -> float | None:
    match = _TIME.search(text)
    return seconds(match[1]) if match else None


FORMAT: Final = Format(
    name="fairseq",
    title="fairseq's log",
    read=read,
    marker=b"epoch",
    record=re.compile(
        rb"\bepoch +\d{1,9}: +\d{1,15} / \d{1,15} +\w+="
        rb'|\{"epoch": \d{1,9}, "update": [^\n]{0,2000}"num_updates": "?\d'
    ),
)
