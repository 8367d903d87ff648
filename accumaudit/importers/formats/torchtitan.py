"""The text that torchtitan prints, and its lists of losses; its counts begin at 1."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from accumaudit.importers import hyperparameters
from accumaudit.importers.arguments import options
from accumaudit.importers.format import Format
from accumaudit.importers.reading.log import Log
from accumaudit.importers.reading.values import number, whole
from accumaudit.importers.records import Records

if TYPE_CHECKING:
    from accumaudit.importers.reading.grep import Columns

_TOLD: Final = (
    r"Trainer is initialized with|Training starts at step|exceed total steps|Training completed"
    r"|torchtitan[./]train\S* .*--[a-z]|Building device mesh|validate step: +\d|SIGTERM|CANCELLED AT"
    r"|^[^|]{0,80}Traceback \(most"
)
"""What is told of a run; for RE2."""

_TRAINER: Final = re.compile(
    r"local batch size (?P<local>[\d,]+), global batch size (?P<samples>[\d,]+), "
    r"gradient accumulation steps (?P<accumulation>[\d,]+), sequence length (?P<length>[\d,]+), "
    r"total steps (?P<planned>[\d,]+)(?: \(warmup (?P<warmup>[\d,]+)\))?"
)
_OLD_TRAINER: Final = re.compile(r"total steps (?P<planned>[\d,]+)(?: \(warmup (?P<warmup>[\d,]+)\))?")
_CLAMPED: Final = re.compile(r"Adjusting warmup steps to (\d+)")
_STARTS: Final = re.compile(r"Training starts at step (\d{1,15})")
_MESH: Final = re.compile(r"\b(pp|dp_replicate|dp_shard|cp|tp)=(\d{1,9})\b")
_VALIDATION: Final = re.compile(r"validate step: +(\d{1,15})")


def read(log: Log, records: Records) -> None:
    """Give each line of a step, and what the text tells of its runs."""
    from accumaudit.importers.formats import torchtitan_lines
    from accumaudit.importers.reading import grep

    grep.follow(log, _Reader(records, log), torchtitan_lines.RECORD, _TOLD, torchtitan_lines.columns)


class _Reader:
    """Follows the runs of a log: where one begins, goes on, and ends."""

    def __init__(self, records: Records, log: Log) -> None:
        self._records = records
        self._log = log
        self._told: dict[str, Any] = {}
        """Facts that were told since the run began; a rank that is late repeats its own."""
        self._facts: dict[str, Any] = {}
        """Facts of the run."""
        self._start = 1
        """The first step of the run, as it was told last."""
        self._samples: float | None = None
        self._running: int | None = None
        """The first step of the run that goes on."""
        self._line = self._step = 0
        self._planned: int | None = None
        self._finished: bool | None = None

    def tell(self, line: int, text: str) -> None:
        """A line that is no record."""
        if "Training completed" in text:
            self._finished = True
        elif validation := _VALIDATION.search(text):
            if self._running:
                self._records.note(line, "eval", attempt_id=int(validation[1]))
        elif starts := _STARTS.search(text):
            self._start = int(starts[1])
        elif "SIGTERM" in text or "CANCELLED" in text or "Traceback" in text:
            if self._running and self._finished is None:
                self._finished = False
        else:
            self._set_up(text)

    def _set_up(self, text: str) -> None:
        """What is told before a run, once or by each of its ranks."""
        if trainer := _TRAINER.search(text) or _OLD_TRAINER.search(text):
            told = {name: whole(value) for name, value in trainer.groupdict().items()}
            self._samples = told.get("samples")
            self._told["planned_updates"] = told["planned"]
            self._told["accumulation_steps"] = told.get("accumulation")
            # A warm-up that is too long is told before, and how it was cut.
            self._told.setdefault("warmup_updates", told["warmup"])
        elif clamped := _CLAMPED.search(text):
            self._told["warmup_updates"] = int(clamped[1])
        elif "device mesh" in text:
            self._told |= _layout({name: int(size) for name, size in _MESH.findall(text)})
        elif "--" in text:
            self._told |= _of_command(options(text))

    def add(self, columns: Columns) -> None:
        """Records as they follow each other; where steps go back, the run was started again."""
        from accumaudit.importers.reading import grep

        for rows, steps in grep.rising(columns):
            self._add(rows, steps)

    def _add(self, rows: Columns, steps: list[int]) -> None:
        first = steps[0]
        if self._running and (first < self._step or self._start not in (1, self._running)):
            again = first < self._step and self._start == self._running  # nothing told it
            self._end()
            if again:
                self._start = max(first, 1)
        if not self._running:
            self._begin(rows["time"][0].as_py())
        self._records.extend({**rows, "reported_samples": [self._samples] * len(steps)})
        self._line, self._step, self._finished = rows["seq"][-1].as_py(), steps[-1], None

    def _begin(self, started_at: float | None) -> None:
        self._facts, self._told = self._told or self._facts, {}
        self._records.begin(
            runtime="torchtitan",
            started_at=started_at,
            resumed_from_update=self._start - 1 if self._start > 1 else None,
            **self._facts,
        )
        self._planned = self._facts.get("planned_updates")
        self._records.know(**hyperparameters.declared(self._log, self._planned))
        self._running = self._start

    def _end(self) -> None:
        if not self._running:
            return
        if self._planned is not None and self._step >= self._planned:
            self._finished = True
        if self._finished is not None:
            self._records.note(self._line, "close", attempt_id=self._step, finished=self._finished)
        self._running, self._step, self._finished = None, 0, None

    def finish(self) -> None:
        """The log is at its end."""
        self._end()


def _layout(mesh: dict[str, int]) -> dict[str, Any]:
    """Sizes of the groups of ranks."""
    if not {"dp_replicate", "dp_shard"} <= mesh.keys():
        return {}
    samples = mesh["dp_replicate"] * mesh["dp_shard"]
    parts = {
        "context_size": mesh.get("cp", 1),
        "tensor_size": mesh.get("tp", 1),
        "pipeline_size": mesh.get("pp", 1),
    }
    world = samples
    for size in parts.values():
        world *= size
    return {"data_parallel_size": samples, "world_size": world, **parts}


def _of_command(told: dict[str, str]) -> dict[str, Any]:
    """The plan and the precision of a command line; the rest is told by the trainer."""
    facts: dict[str, Any] = {
        "planned_updates": whole(told.get("steps")),
        "max_grad_norm": number(told.get("max_norm")),
    }
    if told.get("dtype") in ("float32", "bfloat16"):
        facts["precision"] = told["dtype"]
    return {name: value for name, value in facts.items() if value is not None}


def read_losses(log: Log, records: Records) -> None:
    """Give each line of a list of losses: a step and its loss."""
    records.begin(runtime="torchtitan")
    for line, text in log.lines():
        pair = text.split()
        step = whole(pair[0]) if len(pair) == 2 else None
        if step is not None and (loss := number(pair[1])) is not None:
            records.update(line, step, reported_global_step=step, reported_loss=loss)
        elif pair:
            records.damage(line, "no step and loss")


FORMAT: Final = Format(
    name="torchtitan",
    title="torchtitan's log",
    read=read,
    marker=b"step: ",
    # Terminal codes stand between the fields.
    record=re.compile(rb"(?:\b|\x1b\[[\d;]*m)step: +\d{1,15}  +(?:\x1b\[[\d;]*m)?loss: +[\d.nai+-]"),
)

_PAIRS: Final = re.compile(rb"(?:\d{1,15} +\d{1,4}\.\d{1,20}(?:e[+-]?\d{1,3})?\r?\n){2,}")

LOSSES_FORMAT: Final = Format(
    name="torchtitan_losses",
    title="torchtitan's list of losses",
    read=read_losses,
    begins=lambda head: _PAIRS.match(head) is not None,
)
