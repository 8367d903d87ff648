"""What a caller may say of foreign logs, checked before any is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from accumaudit.importers.reading.log import LogError, Options
from accumaudit.ledger.schema import UPDATE_FIELDS
from accumaudit.nearest import nearest

STEP: Final = "step"
"""The attempt, by the name that it has in logs."""

ALIASES: Final = {
    "update": "optimizer_update_id",
    "loss": "reported_loss",
    "grad_norm": "grad_norm_before_clip",
    "tokens": "reported_tokens",
}
"""Shorter names of fields."""

FIELDS: Final = (
    STEP,
    *ALIASES,
    *(field.name for field in UPDATE_FIELDS if field.type in ("BIGINT", "DOUBLE", "BOOLEAN")),
)
"""What a column may be."""


class OptionError(ValueError):
    """An option that cannot be used; the text says what is wrong with it."""


def checked(
    file: str | os.PathLike[str] | None,
    columns: Mapping[str, str],
    *,
    on_start: Callable[[str, int], object] = lambda _what, _length: None,
    on_read: Callable[[int], object] = lambda _: None,
) -> Options:
    """The options of all foreign logs.

    Args:
        file: one with the hyperparameters of the run.
        columns: the columns of a table by the fields that they are.

    Raises:
        OptionError: the file cannot be read, or there is no such field.
    """
    for field, column in columns.items():
        _check(field, column)
    if columns and STEP not in columns:
        raise OptionError(f"no column is the step: add {STEP}=COLUMN")
    return Options(arguments=_file(file), columns=dict(columns), on_start=on_start, on_read=on_read)


def pairs(texts: Iterable[str]) -> dict[str, str]:
    """`step=iter,learning_rate=lr` as columns by fields.

    Raises:
        OptionError: a text is no such pair, or names a field twice.
    """
    columns: dict[str, str] = {}
    for text in texts:
        for pair in text.split(","):
            field, equals, column = (part.strip() for part in pair.partition("="))
            if not (field and equals and column):
                raise OptionError(
                    f"`{pair}` is no pair; write FIELD=COLUMN, as in step=iter,learning_rate=lr"
                )
            if field in columns:
                raise OptionError(f"`{field}` is two columns, `{columns[field]}` and `{column}`")
            columns[field] = column
    return columns


def _check(field: str, column: str) -> None:
    if field not in FIELDS:
        hint = nearest(field, FIELDS) or f"; fields are {', '.join(FIELDS[:4])} ..."
        raise OptionError(f"`{field}` is no field of a record that a column can be{hint}")
    if not column:
        raise OptionError(f"the column of `{field}` has no name")


def _file(path: str | os.PathLike[str] | None) -> Path | None:
    if path is None:
        return None
    from accumaudit.importers import arguments

    path = Path(path)
    if not path.is_file():
        what = "no file" if path.exists() else "no such file"
        raise OptionError(f"{path}: {what}; give one with the hyperparameters of the run")
    try:
        arguments.read(path)
    except LogError as error:
        raise OptionError(str(error)) from None
    return path
