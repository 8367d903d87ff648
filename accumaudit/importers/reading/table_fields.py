"""Cells of a table as fields of the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from accumaudit.importers.reading.values import number, truth, whole
from accumaudit.ledger.schema import UPDATE_FIELDS

_READERS: Final[dict[str, Callable[[object], object]]] = {"DOUBLE": number, "BIGINT": whole, "BOOLEAN": truth}
_PLACED: Final = ("attempt_id", "rank", "seq")
"""Fields that say where a record stands; each importer tells them itself."""

READERS: Final = {
    field.name: _READERS[field.type]
    for field in UPDATE_FIELDS
    if field.type in _READERS and field.name not in _PLACED
}
"""How each field that one cell can hold is read."""

_IMPLIED: Final = {
    "grad_norm_before_clip": ("grad_norm_before_scope", "global"),
    "grad_norm_after_clip": ("grad_norm_after_scope", "global"),
    "optimizer_step_skipped": ("skip_evidence", "log"),
}
"""What is true of a field because it stands in a log."""


class FieldReader:
    """Reads the fields of an update from the cells of a row."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        """Say what the columns are.

        Args:
            columns: the columns by the fields that they are; what is no field is passed over.
        """
        self._columns = [
            (column, field, READERS[field], _IMPLIED.get(field))
            for field, column in columns.items()
            if field in READERS
        ]

    def read(self, cells: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that a row holds, with what they imply."""
        fields: dict[str, Any] = {}
        for column, field, reader, implied in self._columns:
            cell = cells.get(column)
            if cell is None or cell == "" or (value := reader(cell)) is None:
                continue
            fields[field] = value
            if implied is not None:
                fields[implied[0]] = implied[1]
        return fields
