"""Tables of whatever columns, whose fields the caller names: `--map step=iter,learning_rate=lr`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from accumaudit.importers import hyperparameters
from accumaudit.importers.format import Format
from accumaudit.importers.options import ALIASES, STEP
from accumaudit.importers.reading import table
from accumaudit.importers.reading.log import Log
from accumaudit.importers.reading.table_fields import FieldReader
from accumaudit.importers.reading.values import whole
from accumaudit.importers.records import Records
from accumaudit.importers.restarts import with_restarts

NAMED: Final = 20
"""Columns that a message names."""


def read(log: Log, records: Records) -> None:
    """Give each row that holds a step and anything else that was named."""
    read_columns(log, records, log.options.columns)


def read_columns(log: Log, records: Records, columns: Mapping[str, str], **facts: Any) -> None:
    """Give the rows of a table.

    Args:
        columns: the columns by the fields that they are; `step` is the attempt.
        facts: what is known of the run.
    """
    reader = FieldReader(
        {ALIASES.get(name, name): column for name, column in columns.items() if name != STEP}
    )
    facts = {**facts, **hyperparameters.declared(log)}
    offset: int | None = None
    for (line, step, found), resumed in with_restarts(
        _rows(log, records, columns[STEP], reader), lambda row: row[1]
    ):
        if offset is None:
            offset = int(step == 0)  # what begins with 0 is counted from 0
        if resumed is not None or not records.begun:
            records.begin(**facts, resumed_from_update=resumed or None)
        records.update(line, step + offset, **{"reported_global_step": step, **found})


def _rows(
    log: Log, records: Records, step_column: str, reader: FieldReader
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    for line, cells in table.rows(log, records):
        found = reader.read(cells)
        if not found:
            continue  # a row of the validation
        step = whole(cells.get(step_column))
        if step is None or step < 0:
            records.damage(line, f"`{step_column}` is no count: {str(cells.get(step_column))[:40]!r}")
        else:
            yield line, step, found


def lacks(log: Log) -> str | None:
    """Why a file cannot be read with the columns that were named; None where it can.

    A file that is no table says nothing here.
    """
    names = table.column_names(log.head)
    missing = [column for column in log.options.columns.values() if column not in names]
    if not missing:
        return None
    return f"it has no column `{missing[0]}`; its columns are {', '.join(names[:NAMED])}" if names else ""


FORMAT: Final = Format(name="mapped", title="the table", read=read)
