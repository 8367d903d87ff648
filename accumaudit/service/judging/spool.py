"""The folder in which the process that judges finds the lines of each run."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from accumaudit.service.judging.launches import Kept, Launch

FILE = Path("rank-00", "00000.jsonl")


class Spool:
    """Lines of runs, each run in a folder with a number for a name, and where they came from."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder = folder
        self._root = root
        self._lines: dict[str, list[Kept]] = {}
        self._files: dict[str, Sequence[str]] = {}

    def add(self, key: str, launches: Sequence[Launch], files: Sequence[str]) -> None:
        """Write the lines of a run that can be judged.

        Raises:
            OSError: they cannot be written.
        """
        path = self.folder / key / FILE
        path.parent.mkdir(parents=True)
        lines = [line for launch in launches for line in launch.lines()]
        with path.open("wb") as file:
            file.writelines(line.text + b"\n" for line in lines)
        # Only the place of each line is needed from here on.
        self._lines[str(path)] = [line._replace(text=b"") for line in lines]
        self._files[str(path)] = tuple(files)

    def original(self, file: str, line: int | None) -> tuple[str, int | None]:
        """Where a line of the spool was read."""
        lines = self._lines.get(file)
        if lines is None or line is None or not 0 < line <= len(lines):
            return file, line
        kept = lines[line - 1]
        return str(self._root / self._files[file][kept.file]), kept.number

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
