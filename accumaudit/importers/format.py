"""What an importer is: how its format is recognised, and how it is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from accumaudit.importers.reading.log import Log
from accumaudit.importers.records import Records


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A kind of log that other programs write, and its importer.

    A structured file is recognised by how it begins, a text by the first record in it.
    """

    name: str
    """As in the reports in JSON: `trainer_state`."""
    title: str
    """As a message calls it: `trainer_state.json`."""
    read: Callable[[Log, Records], None]
    """Gives all records of a log.

    Raises:
        LogError: the log cannot be read any further; what was given stands.
    """
    begins: Callable[[bytes], bool] | None = None
    """Whether a file with this beginning is one."""
    marker: bytes = b""
    """What every record of a text holds, as a quick first test."""
    record: re.Pattern[bytes] | None = None
    """A record in a text."""
    names: tuple[str, ...] = ()
    """File names that say nothing of the run, so that its folder names it."""
    run_of: Callable[[Path], Path] | None = None
    """What the files of one run in a folder share; else each file is a run."""
    is_part: Callable[[Log, Log], bool] | None = None
    """Whether all records of a log, which a checkpoint keeps, stand in another log too."""

    def is_in(self, block: bytes) -> bool:
        """Whether a piece of text holds a record."""
        return self.record is not None and self.marker in block and self.record.search(block) is not None
