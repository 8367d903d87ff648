"""What the importers make of one file, without any rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from accumaudit import importers
from accumaudit.importers import Log, Options

DATA: Final = Path(__file__).parent / "data"
"""Small logs, written for these tests in the grammars of other programs."""


@dataclass(frozen=True)
class Imported:
    """The records of a file."""

    format: str
    count: int
    """Records of the log: what follows from its text alone does not count."""
    damaged: list[tuple[int | None, str]]
    rows: list[dict[str, Any]]

    @property
    def runs(self) -> list[dict[str, Any]]:
        """What is known of each launch, without what all logs have."""
        common = ("record", "rank", "schema", "recorded_ranks", "launch")
        return [_without(row, *common) for row in self.rows if row["record"] == "run"]

    @property
    def updates(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["record"] == "update"]

    def column(self, *names: str) -> list[Any]:
        """Fields of the updates: values, or tuples of several."""
        found = [tuple(row.get(name) for name in names) for row in self.updates]
        return found if len(names) > 1 else [values[0] for values in found]

    def marks(self, *names: str) -> list[tuple[Any, ...]]:
        """The kinds of the marks, and more of their fields."""
        marks = (row for row in self.rows if row["record"] == "mark")
        return [tuple(row.get(name) for name in ("kind", *names)) for row in marks]


def imported(path: Path, options: Options | None = None) -> Imported:
    """Recognise a file and read it."""
    log = Log(path, options)
    recognised = importers.recognise(log)
    assert recognised.format is not None, recognised.looks_like
    tables: list[pa.Table] = []
    count, damaged = importers.read(log, recognised.format, tables.append)
    return Imported(recognised.format.name, count, damaged, list(_rows(tables)))


def _rows(tables: list[pa.Table]) -> Iterator[dict[str, Any]]:
    for table in tables:
        yield from table.to_pylist()


def _without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None and name not in names}
