"""Event files of TensorBoard, as Trainer, Lightning, MAE and loops of one's own write them."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any, Final

from accumaudit.importers import hyperparameters
from accumaudit.importers.format import Format
from accumaudit.importers.formats import epoch_steps, event_file
from accumaudit.importers.formats.event_file import Value
from accumaudit.importers.metric_names import SUMMARY, field_of, is_evaluation, is_of_epoch
from accumaudit.importers.reading.log import Log
from accumaudit.importers.reading.values import LARGEST, whole
from accumaudit.importers.records import Records

HELD: Final = 20_000
"""Rows that are held open, because the scalars of one step may be written apart."""

NAMED: Final = 5
"""Tags that a message names."""

_ARGUMENTS: Final = "args/text_summary"
_EPOCHS: Final = ("epoch", "reported_epoch")
_NAME: Final = re.compile(r"(?:^|\.)events\.out\.tfevents\.(\d+)")


def read(log: Log, records: Records) -> None:
    """Join the scalars of each step to one record."""
    run = _Run(log, records)
    try:
        for value in event_file.values(log, records):
            run.take(value)
    finally:
        run.finish()


def run_of(path: Path) -> Path:
    """The run of an event file: its folder, with what stands before the usual name of such files."""
    match = _NAME.search(path.name)
    prefix = path.name[: match.start()] if match else path.name
    return path.parent / prefix if prefix else path.parent


class _Run:
    """The rows of one file: updates and marks, in the order in which they were begun."""

    def __init__(self, log: Log, records: Records) -> None:
        self._log = log
        self._records = records
        self._kinds: dict[str, str] = {}
        """What each tag tells of."""
        self._fields: dict[str, str] = {}
        """The field that a tag is: of several that mean the same the first."""
        self._others: list[str] = []
        """Tags that mean nothing known."""
        self._rows: list[dict[str, Any]] = []
        self._open: dict[tuple[str, int], dict[str, Any]] = {}
        """The last row of each kind and step."""
        self._lasts: dict[str, int] = {}
        """The last step of each tag."""
        self._highest = -1
        self._numbers: _Numbers | None = None
        self._continues = _has_earlier(log.path)

    def take(self, value: Value) -> None:
        if not self._records.begun:
            self._records.begin(started_at=_time(value))
        kind = self._kinds.get(value.tag)
        if kind is None:
            kind = self._kinds[value.tag] = self._kind(value.tag)
        if kind == "update":
            if value.number is not None:
                self._keep(self._fields[value.tag], value)
        elif kind == "arguments":
            self._declare(value.text or b"")
        elif kind and value.text is None and (kind, value.step) not in self._open:
            row = self._begin_row(kind, value)
            if kind == "close":
                row["finished"] = True

    def _kind(self, tag: str) -> str:
        """What a tag tells of; nothing where another means the same, or where it means nothing known."""
        field = field_of(tag)
        if field is not None:
            if field in self._fields.values():
                return ""
            self._fields[tag] = field
            return "update"
        if tag == _ARGUMENTS:
            return "arguments"
        if tag in SUMMARY:
            return "close"
        if is_evaluation(tag):
            return "eval"
        if is_of_epoch(tag):
            return "epoch_end"
        if len(self._others) < NAMED and "/text_summary" not in tag:
            self._others.append(tag)
        return ""

    def finish(self) -> None:
        """Give the rest on; a file without any value tells of a start all the same."""
        name = _NAME.search(self._log.path.name)
        if not self._records.begun:
            self._records.begin(started_at=float(name[1][:12]) if name else None)
        self._flush()
        if "reported_epoch" in self._fields.values():
            self._records.know(runtime="transformers")
        elif self._is_lightning:
            self._records.know(runtime="lightning")
        self._records.know(**hyperparameters.declared(self._log))
        if not self._records.count and self._others:
            tags = ", ".join(self._others)
            self._records.damage(
                None, f"no tag is that of a loss, a rate or a norm of a training; tags are {tags}"
            )

    def _declare(self, text: bytes) -> None:
        try:
            found = json.loads(text)
            facts = hyperparameters.facts(found) if isinstance(found, dict) else {}
        except (ValueError, RecursionError):
            return
        self._records.know(runtime="transformers", **facts)

    @property
    def _is_lightning(self) -> bool:
        return "epoch" in self._fields.values()

    def _keep(self, field: str, value: Value) -> None:
        tag, step = value.tag, value.step
        row = self._open.get(("update", step))
        if field in _EPOCHS:
            if row is not None:  # it is also logged with evaluations, and again at the end
                row.setdefault(field, value.number)
            return
        if step < self._lasts.get(tag, step):
            self._restart(value)
            row = None
        elif step < self._highest:
            self._kinds[tag] = ""  # the tag counts something else: epochs, as a rate often does
            return
        self._lasts[tag] = self._highest = step
        if row is None or field in row:
            row = self._begin_row("update", value)
        row[field] = value.number

    def _restart(self, value: Value) -> None:
        self._flush()
        self._records.begin(started_at=_time(value))
        self._continues = True
        self._lasts.clear()

    def _begin_row(self, kind: str, value: Value) -> dict[str, Any]:
        row = {"kind": kind, "line": value.record, "step": value.step, "time": value.time}
        self._rows.append(row)
        self._open[kind, value.step] = row
        if len(self._rows) > HELD:
            self._give(HELD // 2)
        return row

    def _flush(self) -> None:
        self._give(len(self._rows))
        self._numbers = None

    def _give(self, count: int) -> None:
        rows, self._rows = self._rows[:count], self._rows[count:]
        self._open = {(row["kind"], row["step"]): row for row in self._rows}
        if self._numbers is None:
            steps = [row["step"] for row in rows if row["kind"] == "update"]
            self._numbers = _Numbers(steps, from_0=self._is_lightning)
            before = self._numbers.done_before
            if self._continues and before > 0:
                self._records.know(resumed_from_update=before)
        for row in rows:
            self._give_row(row.pop("kind"), row.pop("line"), row.pop("step"), row, self._numbers)

    def _give_row(self, kind: str, line: int, step: int, row: dict[str, Any], numbers: _Numbers) -> None:
        if kind != "update":
            attempt = numbers.attempt(step)
            self._records.mark(line, kind, attempt_id=attempt if 0 <= attempt <= LARGEST else None, **row)
            return
        if "epoch" in row:
            epoch = whole(row["epoch"])
            row["epoch"] = None if epoch is None else epoch + 1  # counted from 0
        if "grad_norm_before_clip" in row:
            row["grad_norm_before_scope"] = "global"
        self._records.update(line, numbers.attempt(step), **numbers.fields(step), **row)


class _Numbers:
    """What the steps of a launch are in attempts."""

    def __init__(self, steps: list[int], *, from_0: bool) -> None:
        self._epochs = epoch_steps.find(steps)
        first = min(steps, default=0)
        # Lightning counts from 0, and so does a loop whose first step is 0.
        self._offset = int(from_0 or (bool(steps) and first == 0))
        distances = Counter(later - earlier for earlier, later in pairwise(steps) if later > earlier)
        self.done_before = 0
        """The update from which a launch went on: its first record is not later than an interval."""
        if distances:
            interval = 1 if self._epochs else distances.most_common(1)[0][0]
            self.done_before = self.attempt(first) - interval

    def attempt(self, step: int) -> int:
        return self._epochs.attempt(step) if self._epochs else step + self._offset

    def fields(self, step: int) -> dict[str, Any]:
        """The step as it was logged: a number of steps, or of thousandths of an epoch."""
        if self._epochs:
            return {"reported_epoch": step / epoch_steps.EPOCH}
        return {"reported_global_step": step}


def _time(value: Value) -> float | None:
    return value.time if isfinite(value.time) else None


def _has_earlier(path: Path) -> bool:
    """Whether another file of the run was begun before this one."""
    own = _NAME.search(path.name)
    try:
        names = (
            [other.name for other in path.parent.iterdir() if run_of(other) == run_of(path)] if own else []
        )
    except OSError:
        return False
    times = [int(match[1]) for name in names if name != path.name and (match := _NAME.search(name))]
    return own is not None and any(time < int(own[1]) for time in times)


FORMAT: Final = Format(
    name="tensorboard",
    title="the event file",
    read=read,
    begins=event_file.is_event_file,
    run_of=run_of,
)
