"""`trainer_log.jsonl` of LLaMA-Factory, of all its versions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from accumaudit.importers.format import Format
from accumaudit.importers.formats import trainer_entries
from accumaudit.importers.hyperparameters import Companions
from accumaudit.importers.reading.jsonl import objects
from accumaudit.importers.reading.log import Log
from accumaudit.importers.reading.values import number, whole
from accumaudit.importers.records import Records
from accumaudit.importers.restarts import with_restarts

Row = tuple[int, int, bool, dict[str, Any]]
"""Line, step, whether it is an update, entry."""


def read(log: Log, records: Records) -> None:
    """Give each line; a launch goes on in the file of the one before.

    Raises:
        LogError: the log cannot be read any further.
    """
    companions = Companions(log)
    planned: int | None = None
    epochs, entries = trainer_entries.Epochs(None), trainer_entries.Entries(records)
    try:
        for (line, step, is_update, entry), resumed in with_restarts(_rows(log, records), _step):
            if not records.begun or resumed is not None:
                entries.end(planned)
                planned = whole(entry.get("total_steps"))
                known = companions.facts(planned)
                epochs = trainer_entries.Epochs(known.get("accumulation_steps"))
                records.begin(runtime="transformers", resumed_from_update=resumed or None)
                records.know(planned_updates=planned)
                records.know(**known)
            if is_update:
                epoch = epochs.exact(step, number(entry.get("epoch")))
                entries.update(line, step, entry, epoch)
            elif any(entry.get(name) is not None for name in ("eval_loss", "predict_loss")):
                records.mark(line, "eval", attempt_id=step)
            else:  # the last line stands for the summary
                entries.close(line, step, finished=True, name="train summary")
    finally:
        entries.end(planned)


def _rows(log: Log, records: Records) -> Iterator[Row]:
    for line, entry in objects(log, records):
        step = whole(entry.get("current_steps"))
        if step is None:
            records.damage(line, "no current_steps in it")
        else:
            yield line, step, trainer_entries.kind_of(entry) == "update", entry


def _step(row: Row) -> int | None:
    return row[1] if row[2] else None


FORMAT: Final = Format(
    name="llamafactory",
    title="trainer_log.jsonl",
    read=read,
    marker=b'"current_steps"',
    record=re.compile(rb'\{[^{}\n]*"current_steps"\s*:\s*\d+[^{}\n]*"total_steps"\s*:'),
    names=("trainer_log.jsonl",),
)
