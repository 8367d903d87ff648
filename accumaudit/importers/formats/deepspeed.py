"""The text that DeepSpeed's engine prints, whatever loop drives it.

Its step counts attempts, skipped ones included; the rate that it prints is the schedule's at step - skipped.
"""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from accumaudit.importers import hyperparameters
from accumaudit.importers.arguments import options
from accumaudit.importers.format import Format
from accumaudit.importers.reading.log import Log
from accumaudit.importers.reading.values import number
from accumaudit.importers.records import Records

if TYPE_CHECKING:
    from accumaudit.importers.reading.grep import Columns

MOST_SETTINGS: Final = 2000
"""Names of settings that are kept; more are no settings."""

_TOLD: Final = (
    r"Attempted loss scale: |print\]   \w+ \.\.|  \w+ \.\.\.+ |\.py.* --\w|DeepSpeed info: version"
    r"|Beginning of Epoch \d|exits successfully|Killing subprocess|after training is done"
    r"|SIGTERM|CANCELLED AT|^[^|]{0,80}Traceback \(most|exits with return code = -?[1-9]"
)
"""What is told of a run; for RE2."""

_OVERFLOW: Final = re.compile(
    r"Attempted loss scale: ([\d.e+]+), (?:reducing to ([\d.e+]*\d)|but hysteresis)"
)
_SETTING: Final = re.compile(r"(print\])?  +(\w+) \.{2,} +(\S.*)")
_EPOCH: Final = re.compile(r"Beginning of Epoch (\d{1,9})/(\d{1,9}), Total Micro Batches (\d{1,15})")
_SCALE_WINDOW: Final = re.compile(r"'scale_window': (\d{1,9})")

_NAMES: Final = {"fp16_enabled": "fp16", "bfloat16_enabled": "bf16", "world_size": "data_parallel_size"}
"""Settings of the engine by the names that arguments have; its world is that of the data-parallel ranks."""


def read(log: Log, records: Records) -> None:
    """Give each line of steps, and what the text tells of its runs."""
    from accumaudit.importers.formats import deepspeed_lines
    from accumaudit.importers.reading import grep

    grep.follow(log, _Reader(records, log), deepspeed_lines.RECORD, _TOLD, deepspeed_lines.columns)


class _Reader:
    """Follows the runs of a log: where one begins, and ends."""

    def __init__(self, records: Records, log: Log) -> None:
        self._records = records
        self._log = log
        self._run = _Run()
        self._next: _Run | None = None
        """The run to come, once the one before is over."""

    def tell(self, _: int, text: str) -> None:
        """A line that is no record."""
        if overflow := _OVERFLOW.search(text):
            self._run.overflow(number(overflow[1]), number(overflow[2]))
        elif epoch := _EPOCH.search(text):
            self._run.epoch = int(epoch[1])
            self._run.plan = int(epoch[2]), int(epoch[3])
        elif setting := _SETTING.search(text):
            name = _NAMES.get(setting[2], setting[2]) if setting[1] else setting[2]
            self._set({name: setting[3].strip()})
        elif "--" in text:
            self._set(options(text))
        else:
            self._end_or_begin(text)

    def _set(self, settings: dict[str, str]) -> None:
        kept = (self._next or self._run).settings
        for name, value in settings.items():
            if len(kept) < MOST_SETTINGS:
                kept.setdefault(name, value)

    def _end_or_begin(self, text: str) -> None:
        run = self._run
        if not run.began:
            return
        if "DeepSpeed info" in text:
            if run.step:  # several engines of one run are made before it trains
                self._next = self._next or _Run()
        elif any(word in text for word in ("SIGTERM", "CANCELLED", "Traceback", "return code")):
            run.finished = False if run.finished is None else run.finished
        elif "Killing subprocess" in text:  # old launchers kill what has ended as well
            self._next = self._next or _Run()
        elif "exits successfully" in text or "after training is done" in text:
            self._next = self._next or _Run()
            run.finished = True if run.finished is None else run.finished

    def add(self, columns: Columns) -> None:
        """Records as they follow each other; where steps go back, the run was started again."""
        from accumaudit.importers.reading import grep

        steps = columns["attempt_id"].to_pylist()
        breaks = [
            place for place in range(1, len(steps)) if steps[place] < steps[place - 1] or not steps[place - 1]
        ]
        for start, stop in zip([0, *breaks], [*breaks, len(steps)], strict=True):
            self._add(grep.cut(columns, start, stop), steps[start:stop])

    def _add(self, rows: Columns, steps: list[int]) -> None:
        if self._run.began and (self._next is not None or steps[0] < self._run.step):
            before = self._run
            self._end()
            if steps[0] < before.step:
                self._run.settings = self._run.settings or before.settings
                self._run.resumed_from = max(steps[0] - before.interval, 0) or None
        run = self._run
        if not run.began:
            run.began = True
            started_at = rows["time"][0].as_py()
            self._records.begin(
                runtime="deepspeed", started_at=started_at, resumed_from_update=run.resumed_from
            )
        run.line = rows["seq"][-1].as_py()
        if steps[0] == 0:  # before the first attempt
            for line, rates in zip(rows["seq"].to_pylist(), rows["learning_rates"].to_pylist(), strict=True):
                told = {
                    "learning_rates": [
                        rate if rate is not None and isfinite(rate) else None for rate in rates
                    ]
                }
                self._records.mark(line, "declare", attempt_id=0, name=json.dumps(told))
            return
        run.accumulate(rows.pop("micro_steps")[0].as_py(), steps[0])
        rows |= run.follow(steps, rows.pop("skipped").to_pylist())
        self._records.extend(rows)

    def _end(self) -> None:
        run = self._run
        if run.began:
            planned = run.planned_updates()
            self._records.know(**hyperparameters.facts(run.settings, planned))
            self._records.know(**hyperparameters.declared(self._log, planned))
            self._records.know(planned_updates=planned, accumulation_steps=run.accumulation)
            if planned is not None and run.step == planned:
                run.finished = True
            if run.finished is not None:
                self._records.note(run.line, "close", attempt_id=run.step, finished=run.finished)
        self._run, self._next = self._next or _Run(), None

    def finish(self) -> None:
        """The log is at its end."""
        self._end()


class _Run:
    """What is known of one run."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.began = False
        """It has a record."""
        self.line = self.step = self.skipped = 0
        self.interval = 1
        self.resumed_from: int | None = None
        self.epoch: int | None = None
        self.plan: tuple[int, int] | None = None
        """Epochs, and micro-batches of one."""
        self.accumulation: int | None = None
        self.finished: bool | None = None
        self._engines = 0
        """Steps that were told again, by another engine of the run."""
        self._attempted: float | None = None
        """The loss scale of an overflow since the last record."""
        self._scale: tuple[int, float] | None = None
        """The loss scale from an overflow on, and the step of the last record before it."""

    def follow(self, steps: list[int], skipped: list[int]) -> dict[str, list[Any]]:
        """Go on over steps; tell which were skipped, how many updates there were, and the loss scales."""
        window = self._scale_window()
        decided, scales = [], []
        for step, count in zip(steps, skipped, strict=True):
            interval, more = step - self.step, count - self.skipped
            self._engines += interval == 0
            was_skipped = False if more == 0 else True if more == interval else None
            if self._engines:
                was_skipped = None  # the count before is another engine's
            if more and self._attempted is None:
                self._scale = None  # an overflow that was not told
            scale = None  # which of several attempts overflowed is not told
            if was_skipped and interval == 1:
                scale = self._attempted
            elif was_skipped is False and self._scale is not None and step <= self._scale[0] + window:
                scale = self._scale[1]
            decided.append(was_skipped)
            scales.append(scale)
            self.interval = interval or self.interval
            self.step, self.skipped, self._attempted = step, count, None
        return {
            "optimizer_update_id": [
                step - count if count <= step else None for step, count in zip(steps, skipped, strict=True)
            ],
            "optimizer_step_skipped": decided,
            "skip_evidence": [None if one is None else "log" for one in decided],
            "grad_scale": scales,
            "epoch": [self.epoch] * len(steps),
        }

    def overflow(self, attempted: float | None, reduced: float | None) -> None:
        """An attempt overflowed at a loss scale, which was then reduced, or not yet."""
        self._attempted = attempted
        scale = attempted if reduced is None else reduced
        self._scale = None if scale is None else (self.step, scale)

    def _scale_window(self) -> int:
        """Attempts after an overflow in which the scale does not grow, as far as that is told."""
        told = _SCALE_WINDOW.search(self.settings.get("dynamic_loss_scale_args", ""))
        return int(told[1]) if told else 0

    def accumulate(self, micro_steps: float | None, steps: int) -> None:
        """The timer counted micro-steps as well."""
        if self.accumulation is None and micro_steps and micro_steps % steps == 0:
            self.accumulation = int(micro_steps) // steps

    def planned_updates(self) -> int | None:
        """As epochs of whole windows give it."""
        if self.plan is None or not self.accumulation:
            return None
        epochs, micro_batches = self.plan
        return None if micro_batches % self.accumulation else epochs * micro_batches // self.accumulation


FORMAT: Final = Format(
    name="deepspeed",
    title="DeepSpeed's log",
    read=read,
    marker=b"skipped=",
    record=re.compile(rb"\bstep=\d{1,15}, skipped=\d{1,15}, lr=\["),
)
