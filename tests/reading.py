"""Keeps the ledger that was read last: a test asks one several questions, and reading takes longest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from accumaudit.opened import Ledger

State = tuple[tuple[Path, bytes | None], ...]
"""All that lies at some paths."""

_kept: Final[dict[State, Ledger]] = {}


def read(*paths: Path) -> Ledger:
    """The runs at these paths; not to be closed. They are read again where anything there has changed."""
    state = tuple(_state(paths))
    if state not in _kept:
        while _kept:
            _kept.popitem()[1].close()
        _kept[state] = Ledger.open(*paths)
    return _kept[state]


def _state(paths: tuple[Path, ...]) -> Iterator[tuple[Path, bytes | None]]:
    for path in paths:
        for place in [path, *sorted(path.rglob("*"))]:
            yield place, place.read_bytes() if place.is_file() else None
