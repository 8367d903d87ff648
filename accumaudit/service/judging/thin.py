"""A copy of a large ledger that holds the records of one rank alone, without their lists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from accumaudit.ledger.reader import LedgerError
from accumaudit.ledger.recovery import open_bytes
from accumaudit.ledger.sources import Source, find_runs
from accumaudit.ledger.sums import without_lists

_RANK: Final = re.compile(r"(\d{1,9})\.")
"""How the name of a rank's file begins."""


def size_of(folder: Path) -> int:
    """The bytes of a run's records."""
    return sum(source.path.stat().st_size for source in _sources(folder))


def copy(folder: Path, place: Path, limit: int) -> tuple[Path, dict[str, str]]:
    """Copy the records of the lowest rank; give the copy's folder, and what its files were copied from.

    Raises:
        LedgerError: one rank's record is too large as well.
    """
    ranks = {
        source.name: int(found[1]) for source in _sources(folder) if (found := _RANK.match(source.path.name))
    }
    lowest = min(ranks.values(), default=None)
    chosen = [source for source in _sources(folder) if ranks.get(source.name) == lowest]
    if lowest is None or sum(source.path.stat().st_size for source in chosen) > 4 * limit:
        raise LedgerError("it is too large to be read again while it is written")
    files = {}
    for number, source in enumerate(chosen):
        path = place / folder.resolve().name / "rank-00" / f"{number:05d}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.writelines(_thin_lines(source, lowest))
        files[str(path)] = source.name
    return place / folder.resolve().name, files


def _sources(folder: Path) -> list[Source]:
    runs, _ = find_runs([folder])
    return [source for run in runs if run.format == "ledger" for source in run.files]


def _thin_lines(source: Source, rank: int) -> Iterator[bytes]:
    """The lines of a file, as many as there are: what is no record stays as it is."""
    with open_bytes(source) as file:
        for line in file:
            yield _thin(line, rank) if line.endswith(b"\n") else b"\n"


def _thin(line: bytes, rank: int) -> bytes:
    try:
        record = json.loads(line)
        if record["record"] == "run":
            record["recorded_ranks"] = [rank]
        elif record["record"] == "update" and not record.get("window_sums"):
            record = without_lists(record)
        return json.dumps(record).encode() + b"\n"
    except (ValueError, TypeError, LookupError, RecursionError, AttributeError):
        return line
