"""The table of evaluations that a fork of nanoGPT keeps: `iter,train_loss,val_loss,lr,ms_per_iter`.

The counter and the rate are those of the update that follows the evaluation.
"""

from __future__ import annotations

from typing import Final

from accumaudit.importers.format import Format
from accumaudit.importers.formats import mapped
from accumaudit.importers.reading import table
from accumaudit.importers.reading.log import Log
from accumaudit.importers.records import Records

_COLUMNS: Final = {"step": "iter", "loss": "train_loss", "learning_rate": "lr"}


def read(log: Log, records: Records) -> None:
    """Give each row."""
    mapped.read_columns(log, records, _COLUMNS, runtime="nanogpt")


FORMAT: Final = Format(
    name="nanogpt_csv",
    title="nanoGPT's table",
    read=read,
    begins=lambda head: (
        head.startswith(b"iter") and {*_COLUMNS.values(), "val_loss"} <= set(table.column_names(head))
    ),
)
