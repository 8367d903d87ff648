"""`log.txt` of MAE, DeiT and their kin: one JSON object an epoch, and nothing of any update."""

from __future__ import annotations

from typing import Final

from accumaudit.importers import hyperparameters
from accumaudit.importers.format import Format
from accumaudit.importers.reading import table
from accumaudit.importers.reading.jsonl import objects
from accumaudit.importers.reading.log import Log
from accumaudit.importers.reading.values import whole
from accumaudit.importers.records import Records

_KEYS: Final = frozenset({"epoch", "train_loss", "train_lr"})


def read(log: Log, records: Records) -> None:
    """Give the end of each epoch; the rate and the loss are means over it, and belong to no update."""
    facts = hyperparameters.declared(log)
    records.begin(**facts)
    done = None
    for line, found in objects(log, records):
        epoch = whole(found.get("epoch"))
        if epoch is None or epoch < 0:
            records.damage(line, "no epoch")
            continue
        if done is not None and epoch <= done:  # begun anew, or gone on with from a checkpoint
            records.begin(**facts)
        done = epoch
        records.mark(line, "epoch_end", epoch=epoch + 1)


def _begins(head: bytes) -> bool:
    return any(found.keys() >= _KEYS for found in table.first_objects(head)[:1])


FORMAT: Final = Format(
    name="mae",
    title="the log of epochs",
    read=read,
    begins=_begins,
    names=("log.txt",),
)
