"""What a training has recorded, for tests of the hooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.loops import read_records

Record = dict[str, Any]


def updates(folder: Path, optimizer: int | None = None) -> list[Record]:
    """The update records, of one optimizer where it is named."""
    records = [entry for entry in read_records(folder) if entry["record"] == "update"]
    return [entry for entry in records if optimizer in (None, entry["optimizer"])]


def words(folder: Path, optimizer: int | None = None) -> list[str]:
    """Their words."""
    return [entry["events"] for entry in updates(folder, optimizer)]


def marks(folder: Path, *kinds: str) -> list[Record]:
    """The marks of these kinds."""
    return [entry for entry in read_records(folder) if entry.get("kind") in kinds]


def faults(folder: Path) -> list[Record]:
    """What says that a hook failed, or that records were lost."""
    return marks(folder, "hook_error", "gap")
