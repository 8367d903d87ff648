"""Columns of the ledger's schema as Arrow tables; imported late, because most audits read no foreign log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from accumaudit.ledger.schema import FIELDS, RECORD_FIELD

_SCALARS: Final[dict[str, pa.DataType]] = {
    "VARCHAR": pa.string(),
    "JSON": pa.string(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
}


def _type(kind: str) -> pa.DataType | None:
    scalar = _SCALARS.get(kind.removesuffix("[]"))
    return pa.list_(scalar) if scalar is not None and kind.endswith("[]") else scalar


TYPES: Final[dict[str, pa.DataType]] = {
    field.name: type_
    for field in (RECORD_FIELD, *(field for fields in FIELDS.values() for field in fields))
    if (type_ := _type(field.type)) is not None
}
"""The fields that an importer may fill; what else the schema has is seen by hooks alone."""


def from_rows(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows that have different fields, as a table that has all of them."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _array([row.get(name) for row in rows], TYPES[name]) for name in names})


def _array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """The values; one that the type cannot hold, such as a count of 400 digits, is null."""
    try:
        return pa.array(values, type_)
    except (OverflowError, pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([value if _fits(value, type_) else None for value in values], type_)


def _fits(value: Any, type_: pa.DataType) -> bool:
    try:
        pa.scalar(value, type_)
    except (OverflowError, pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    return True


def from_columns(columns: Mapping[str, Any], constants: Mapping[str, Any]) -> pa.Table:
    """Columns of one length, sequences or arrays, and values that all rows share."""
    length = len(columns["seq"])
    arrays = {
        name: values.cast(TYPES[name]) if isinstance(values, pa.Array) else _array(values, TYPES[name])
        for name, values in columns.items()
    }
    shared = {name: pa.repeat(pa.scalar(value, TYPES[name]), length) for name, value in constants.items()}
    return pa.table({**shared, **arrays})


def listed(values: Any) -> list[Any]:
    """A sequence, or an array, as a list."""
    return values.to_pylist() if isinstance(values, pa.Array) else list(values)


def with_index(table: pa.Table, name: str, value: int) -> pa.Table:
    """The table with a column of one number."""
    return table.append_column(name, pa.repeat(pa.scalar(value), table.num_rows))


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """All rows; a column that one table lacks is null there."""
    return pa.concat_tables(tables, promote_options="default")
