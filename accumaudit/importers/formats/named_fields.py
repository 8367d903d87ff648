"""Tables with the field names that articles on gradient accumulation recommend: CSV or JSON lines.

micro_step_id, optimizer_update_id, epoch, global_valid_tokens_in_update, cumulative_train_tokens,
learning_rate, optimizer_step_skipped, grad_norm_before_clip, grad_norm_after_clip: they are fields of the
record as they are. A row is an update, or a micro-step; several ranks may write into one file.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Final

from accumaudit.importers import hyperparameters
from accumaudit.importers.format import Format
from accumaudit.importers.formats.update_rows import MICRO_STEP, OF_UPDATES, UPDATE_ID, Attempts, Row, Shape
from accumaudit.importers.metric_names import field_of
from accumaudit.importers.reading import table
from accumaudit.importers.reading.log import Log
from accumaudit.importers.reading.table_fields import READERS, FieldReader
from accumaudit.importers.reading.values import whole
from accumaudit.importers.records import Records

SAMPLED: Final = 256
"""Rows at the beginning that tell what the rows are."""

MOST_RANKS: Final = 10_000
"""Ranks and optimizers that one file may be of."""

_TELLING: Final = frozenset({MICRO_STEP, "cumulative_train_tokens", *OF_UPDATES})
"""Names that hardly anything else has; two of them do without the number of updates."""
_RANKS: Final = ("rank", "global_rank", "process_index")
_ALSO: Final = {"step": "reported_global_step", "global_step": "reported_global_step", "timestamp": "time"}


def read(log: Log, records: Records) -> None:
    """Give each update of each rank."""
    facts = hyperparameters.declared(log)
    rows = _rows(log, records)
    first = list(islice(rows, SAMPLED))
    shape = Shape(first)
    ranks: dict[tuple[int, int], Attempts] = {}
    launches = 1
    records.begin(**facts)
    for row in chain(first, rows):
        rank = ranks.get(row.key)
        if rank is None:
            if len(ranks) == MOST_RANKS:
                records.damage(row.line, f"rank {row.rank}, after {MOST_RANKS:,} others")
                continue
            rank = ranks[row.key] = Attempts(shape)
        if rank.starts_again(row):
            _end(ranks, records)
            rank.launches += 1
            if rank.launches > launches:
                launches = rank.launches
                done = (row.update_id or 1) - 1
                records.begin(**facts, resumed_from_update=done if done > 0 else None)
        for line, attempt, fields in rank.take(row):
            records.update(line, attempt, rank=row.rank, **fields)
    _end(ranks, records)


def _end(ranks: dict[tuple[int, int], Attempts], records: Records) -> None:
    for (number, _), rank in ranks.items():
        for line, attempt, fields in rank.end():
            records.update(line, attempt, rank=number, **fields)
    if ranks:
        records.know(recorded_ranks=sorted({number for number, _ in ranks}))


def _rows(log: Log, records: Records) -> Iterator[Row]:
    names = table.column_names(log.head)
    reader = FieldReader(_columns(names))
    rank_column = next((name for name in _RANKS if name in names), None)
    epochs = _Epochs()
    for line, cells in table.rows(log, records):
        rank = 0 if rank_column is None else whole(cells.get(rank_column))
        fields = reader.read(cells)
        if rank is None or rank < 0 or not fields:
            records.damage(line, "no rank" if fields else "none of the fields")
            continue
        yield Row(line, rank, epochs.counted(fields, cells.get("epoch")))


class _Epochs:
    """Epochs as the record counts them: begun ones from 1, and fractions apart."""

    def __init__(self) -> None:
        self._first: int | None = None

    def counted(self, fields: dict[str, Any], cell: object) -> dict[str, Any]:
        epoch = fields.pop("epoch", None)
        if isinstance(cell, float) or (isinstance(cell, str) and "." in cell):
            passes = READERS["reported_epoch"](cell)
            return fields if passes is None else {**fields, "reported_epoch": passes}
        if epoch is not None:
            if self._first is None:
                self._first = epoch
            fields["epoch"] = epoch + (self._first == 0)
        return fields


def _columns(names: list[str]) -> dict[str, str]:
    """The column of each field: one of its own name, or of one that trainers use."""
    found = {name: name for name in names if name in READERS}
    for name in names:
        field = _ALSO.get(name) or field_of(name)
        if field in READERS:
            found.setdefault(field, name)
    return found


def _begins(head: bytes) -> bool:
    names = table.column_names(head)
    return UPDATE_ID in names or len(_TELLING.intersection(names)) > 1


FORMAT: Final = Format(
    name="named_fields",
    title="the table of updates",
    read=read,
    begins=_begins,
)
