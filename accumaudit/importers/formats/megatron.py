"""The text that Megatron-LM and Megatron-DeepSpeed print, of all their versions.

A line of an iteration sums up a window of them: its count of skipped ones is the window's, its loss is the
mean over the others, and absent where there is none.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from accumaudit.importers import hyperparameters
from accumaudit.importers.format import Format
from accumaudit.importers.reading.log import Log
from accumaudit.importers.reading.values import seconds, whole
from accumaudit.importers.records import Records

if TYPE_CHECKING:
    import pyarrow as pa

    from accumaudit.importers.reading.grep import Columns

RECORD: Final = r"\biteration\s+\d{1,15}/\s*\d{1,15}\s*\|"
"""How the line of an iteration begins, behind whatever prefix."""

MOST_ARGUMENTS: Final = 5000
"""Arguments that are kept; there are a few hundred."""

SAMPLED: Final = 100
"""Records that tell how many iterations are one window."""

_TOLD: Final = (
    r"---- arguments ----|  \w+ \.\.|\] datetime: |loaded checkpoint .*iteration \d"
    r"|saved checkpoint at iteration|after training is done|alid\w* loss at iteration"
    r"|SIGTERM|CANCELLED AT|^[^|]{0,80}Traceback \(most"
)
"""What else is told of a run; for RE2."""

_ARGUMENT: Final = re.compile(r"  (\w+) \.{2,} *(.*\S)")
_DATE: Final = re.compile(r"\] datetime: (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_AT: Final = re.compile(r"iteration\s+(\d{1,15})")


def read(log: Log, records: Records) -> None:
    """Give each line of an iteration, and what the text tells of its runs."""
    from accumaudit.importers.formats import megatron_lines
    from accumaudit.importers.reading import grep

    columns = partial(megatron_lines.columns, records=records)
    grep.follow(log, Reader(records, log), RECORD, _TOLD, columns)


class Reader:
    """Follows the runs of a log: where one begins, goes on, and ends."""

    def __init__(self, records: Records, log: Log) -> None:
        self._records = records
        self._log = log
        self._arguments: dict[str, str] = {}
        self._started_at: float | None = None
        self._loaded: int | None = None
        self._running = False
        """Whether the run has a record; what is told before one belongs to the run to come."""
        self._line = self._step = 0
        self._interval = 1
        self._planned: int | None = None
        self._finished: bool | None = None
        self._skips: Skips = Skips()

    def tell(self, line: int, text: str) -> None:
        """A line that is no record."""
        if "-- arguments --" in text:
            self._end()
        elif argument := _ARGUMENT.search(text):
            own = "print]" not in text  # DeepSpeed's settings look alike
            if own and not self._running and len(self._arguments) < MOST_ARGUMENTS:
                self._arguments[argument[1]] = argument[2]
        elif date := _DATE.search(text):
            self._dated(text, date[1])
        elif "loaded checkpoint" in text:
            at = _AT.search(text)
            if at and not self._running:
                self._loaded = int(at[1]) or None
        elif self._running:
            self._told_of_run(line, text)

    def _dated(self, text: str, date: str) -> None:
        if "after training is done" in text:
            reached = self._planned is None or self._step + self._interval > self._planned
            self._finished = True if reached else self._finished
            return
        if "before the start of training" in text:
            self._end()
        if self._started_at is None and not self._running:
            self._started_at = seconds(date)

    def _told_of_run(self, line: int, text: str) -> None:
        at = _AT.search(text)
        if "saved checkpoint" in text and at:
            self._records.note(line, "checkpoint", attempt_id=int(at[1]), name=f"iter_{int(at[1]):07d}")
        elif "loss at iteration" in text and at:
            self._records.note(line, "eval", attempt_id=int(at[1]))
        elif at is None and self._finished is None:
            self._finished = False  # killed, or crashed, unless more records follow

    def add(self, columns: Columns) -> None:
        """Records as they follow each other; where steps go back, the run was started again."""
        from accumaudit.importers.reading import grep

        for rows, steps in grep.rising(columns):
            self._add(rows, steps)

    def _add(self, rows: Columns, steps: list[int]) -> None:
        total = rows.pop("total")[-1].as_py()
        if self._running and steps[0] < self._step:
            arguments = self._arguments
            self._end()
            self._arguments = arguments
            self._loaded = max(steps[0] - self._interval, 0) or None
        self._interval = self._usual_interval(steps)
        if not self._running:
            self._begin(steps[0], total)
        self._planned, self._finished = total, None
        rows |= self._skips.columns(rows, rows.pop("skipped"), hidden=_hides_skips(self._arguments))
        self._records.extend(rows)
        self._step, self._line = steps[-1], rows["seq"][-1].as_py()

    def _usual_interval(self, steps: list[int]) -> int:
        """Iterations from one record to the next."""
        stated = whole(self._arguments.get("log_interval"))
        known = [self._step, *steps] if self._running else steps
        found = [later - earlier for earlier, later in pairwise(known[:SAMPLED]) if later > earlier]
        return stated or min(found, default=self._interval if self._running else 1)

    def _begin(self, first: int, total: int) -> None:
        loaded = self._loaded
        self._records.begin(
            runtime="megatron", planned_updates=total, started_at=self._started_at, resumed_from_update=loaded
        )
        self._records.know(**hyperparameters.facts(_in_updates(self._arguments), total))
        self._records.know(**hyperparameters.declared(self._log, total))
        self._skips.begin(loaded or 0, known=first <= (loaded or 0) + self._interval)
        self._running = True

    def _end(self) -> None:
        """The run has ended; what is told from now on belongs to the next."""
        if not self._running:
            return
        if self._planned is not None and self._step >= self._planned:
            self._finished = True
        if self._finished is not None:
            self._records.note(self._line, "close", attempt_id=self._step, finished=self._finished)
        self._running, self._step, self._finished = False, 0, None
        self._arguments, self._started_at, self._loaded = {}, None, None

    def finish(self) -> None:
        """The log is at its end."""
        self._end()


def _in_updates(arguments: dict[str, str]) -> dict[str, Any]:
    """The arguments, with a schedule that counts samples in updates, or without it where batches grow."""
    kept: dict[str, Any] = {"lr_warmup_fraction": arguments.get("warmup"), **arguments}
    if arguments.get("rampup_batch_size", "None") != "None":
        kept.pop("global_batch_size", None)
    if whole(arguments.get("train_samples")) is None:
        return kept
    kept.pop("lr_warmup_iters", None)
    batch = whole(kept.get("global_batch_size"))
    if not batch:
        kept.pop("lr_decay_style", None)
        return kept
    for name in ("lr_decay", "lr_warmup"):
        samples = whole(arguments.get(f"{name}_samples"))
        if samples:
            kept[f"{name}_iters"] = samples // batch
    return kept


def _hides_skips(arguments: dict[str, str]) -> bool:
    """DeepSpeed's engine skips by itself, and Megatron then counts none."""
    return arguments.get("deepspeed") == "True" and arguments.get("fp16") == "True"


class Skips:
    """How many iterations were skipped so far, as long as that is known from the first on."""

    def __init__(self) -> None:
        self._so_far: int | None = None
        self._highest = 0
        """The last iteration that was counted."""
        self._history: list[tuple[int, int]] = []
        """How many there were after an iteration, wherever that number rose; empty where it is not known."""

    def begin(self, resumed_from: int, *, known: bool) -> None:
        """A launch begins, or goes on after an iteration.

        Args:
            resumed_from: the iteration; 0 at the beginning.
            known: the first window follows at once.
        """
        if not resumed_from:
            self._history = [(0, 0)] if known else []
        self._history = [one for one in self._history if one[0] <= resumed_from]
        self._so_far = self._history[-1][1] if known and self._history else None
        self._highest = 0

    def columns(self, rows: Columns, skipped: pa.Array, *, hidden: bool) -> Columns:
        """Whether each attempt was skipped, and how many updates there were.

        Args:
            rows: the records; a window has no loss where all its iterations were skipped.
            skipped: how many were, in the window of each record.
            hidden: a count of 0 may be wrong.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        from accumaudit.importers.reading.fields import where_any

        no_loss = pc.is_null(rows["reported_loss"])
        sure = pc.and_(pc.equal(skipped, 0), pc.invert(no_loss))
        nothing = pa.scalar(None, pa.bool_())
        decided = pc.if_else(pc.and_(pc.greater(skipped, 0), no_loss), True, nothing)
        if not hidden:
            decided = pc.if_else(pc.fill_null(sure, False), False, decided)
        found = {
            "optimizer_step_skipped": decided,
            "skip_evidence": where_any(decided, "log"),
        }
        if hidden or skipped.null_count or self._so_far is None:
            self._so_far, self._history = None, []
            return found
        steps = rows["attempt_id"]
        counted = pc.if_else(self._first_of_each(steps), skipped, 0)
        total = pc.add(pc.cumulative_sum(counted), self._so_far)
        self._so_far = total[-1].as_py()
        rises = pc.indices_nonzero(counted)
        self._history += zip(steps.take(rises).to_pylist(), total.take(rises).to_pylist(), strict=True)
        return found | {"optimizer_update_id": pc.subtract(steps, total)}

    def _first_of_each(self, steps: pa.Array) -> pa.Array:
        """Which rows are the first of their iteration: several ranks may print the same."""
        import pyarrow as pa
        import pyarrow.compute as pc

        highest = pc.cumulative_max(pa.concat_arrays([pa.array([self._highest], pa.int64()), steps]))
        self._highest = highest[-1].as_py()
        return pc.greater(steps, highest[:-1])


FORMAT: Final = Format(
    name="megatron",
    title="Megatron's log",
    read=read,
    marker=b"iteration",
    record=re.compile(rb"\biteration\s+\d{1,15}/\s*\d{1,15}\s*\|"),
)
