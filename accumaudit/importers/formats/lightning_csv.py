"""`metrics.csv` of Lightning's CSVLogger.

Each call of the logger is a row, so that most cells are empty: the rate comes in a row of its own, and rows
of the validation and of an epoch's means repeat the step of the last update. Steps count updates from 0:
every tenth is logged as 9, 19, 29. Tables of one's own with an epoch and a step are read too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from typing import Any, Final

from accumaudit.importers import hyperparameters
from accumaudit.importers.format import Format
from accumaudit.importers.metric_names import field_of, is_evaluation, is_of_epoch
from accumaudit.importers.reading import table
from accumaudit.importers.reading.log import Log
from accumaudit.importers.reading.values import number, whole
from accumaudit.importers.records import Records
from accumaudit.importers.restarts import with_restarts

SAMPLED: Final = 64
"""Records at the beginning that tell from where steps are counted."""

_KEYS: Final = ("epoch", "step")
_RATE_ALONE: Final = {"learning_rate"}


@dataclass(slots=True)
class _Row:
    """What one or several rows of a step say."""

    line: int
    step: int
    kind: str
    epoch: int | None
    fields: dict[str, Any] = field(default_factory=dict)


def read(log: Log, records: Records) -> None:
    """Join the rows of each step to one record."""
    rows = _joined(_rows(log, records))
    first = list(islice(rows, SAMPLED))
    offset = int(_counts_from_0([row.step for row in first if row.kind == "update"]))
    facts = {"runtime": "lightning" if offset else None, **hyperparameters.declared(log)}
    records.begin(**facts)
    row, attempt = None, 0
    for row, resumed in with_restarts(chain(first, rows), _step):
        if resumed is not None:
            records.begin(**facts, resumed_from_update=resumed or None)
        attempt = row.step + offset
        if row.kind == "update":
            records.update(row.line, attempt, reported_global_step=row.step, epoch=row.epoch, **row.fields)
        else:
            records.mark(row.line, row.kind, attempt_id=attempt, epoch=row.epoch)
    if row is not None and attempt == facts.get("planned_updates"):
        records.note(row.line, "close", attempt_id=attempt, finished=True)


def _step(row: _Row) -> int | None:
    return row.step if row.kind == "update" else None


def _counts_from_0(steps: list[int]) -> bool:
    """Whether the first step is 0, or each is one less than what the distance of two divides."""
    distances = Counter(later - earlier for earlier, later in pairwise(steps) if later > earlier)
    distance = distances.most_common(1)[0][0] if distances else 1
    return bool(steps) and (steps[0] == 0 or (distance > 1 and (steps[0] + 1) % distance == 0))


def _rows(log: Log, records: Records) -> Iterator[_Row]:
    columns = _columns(table.column_names(log.head))
    kinds: dict[tuple[str, ...], str] = {}
    """By the columns in which a row has a cell: there are few such sets."""
    for line, cells in table.rows(log, records):
        step = whole(cells["step"])
        if step is None or step < 0:
            records.damage(line, f"the step {cells['step'][:40]!r} is no count of updates")
            continue
        epoch = whole(cells["epoch"])
        # A rate in a row of its own has no epoch, and is that of an update all the same.
        filled = tuple(name for name, cell in cells.items() if cell)
        kind = kinds.get(filled)
        if kind is None:
            kind = kinds[filled] = _kind([name for name in filled if name not in _KEYS])
        row = _Row(line, step, kind, None if epoch is None else epoch + 1)
        if kind == "update":
            for name in filled:
                if name in columns and (value := number(cells[name])) is not None:
                    row.fields[columns[name]] = value
            if "grad_norm_before_clip" in row.fields:
                row.fields["grad_norm_before_scope"] = "global"
        yield row


def _columns(names: list[str]) -> dict[str, str]:
    """The field of each column that is one; of several columns that are the same field the first counts."""
    found: dict[str, str] = {}
    for name in names:
        field_ = field_of(name)
        if field_ is not None and name not in _KEYS and field_ not in found.values():
            found[name] = field_
    return found


def _kind(names: list[str]) -> str:
    """What a row with these cells tells of."""
    if all(is_of_epoch(name) or field_of(name) is None for name in names) and any(map(is_of_epoch, names)):
        return "epoch_end"
    if any(map(is_evaluation, names)) and not any(map(field_of, names)):
        return "eval"
    return "update"


def _joined(rows: Iterator[_Row]) -> Iterator[_Row]:
    """Join the rows of one update that stand behind each other and say different things.

    LearningRateMonitor writes its row at each micro-batch: the last of them is the update's.
    """
    held: _Row | None = None
    for row in rows:
        if (
            held is not None
            and (held.kind, held.step) == ("update", row.step)
            and row.kind == "update"
            and (
                not held.fields.keys() & row.fields.keys()
                or held.fields.keys() == row.fields.keys() == _RATE_ALONE
            )
        ):
            held.fields |= row.fields
            held.epoch = row.epoch if held.epoch is None else held.epoch
            continue
        if held is not None:
            yield held
        held = row
    if held is not None:
        yield held


def _begins(head: bytes) -> bool:
    """A table with an epoch, a step and metrics of a training; a log of JSON lines is another format."""
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return False
    names = table.column_names(head)
    return set(_KEYS) <= set(names) and any(
        field_of(name) is not None or is_evaluation(name) or is_of_epoch(name)
        for name in names
        if name not in _KEYS
    )


FORMAT: Final = Format(
    name="lightning_csv",
    title="metrics.csv",
    read=read,
    begins=_begins,
    names=("metrics.csv",),
)
