"""The folder in which the process that judges finds the lines of each run."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from accumaudit.service.judging.launches import Kept

_PLACE: Final = re.compile(r"line (\d{1,9}) of ")
"""How the message of a rule names a line; the file follows."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file that is followed."""

    name: str
    """Below the folder that is watched."""
    rank: int | None = None
    """Of its first record."""


class Spool:
    """Lines of runs, each run in a folder with a number for a name, and where they came from.

    A thousand files take longer to open than to read. The lines of many ranks go into one file; files of the
    same rank stay apart, because rules tell copies by their files.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder = folder
        self._root = root
        self._places: dict[str, list[tuple[str, int]]] = {}
        """The file and the number of each line, by the spool's files."""

    def add(self, key: str, lines: Iterable[Kept], files: Sequence[SourceFile]) -> None:
        """Write the lines of a run.

        Raises:
            OSError: they cannot be written.
        """
        order = _in_order(files)
        layers: dict[int, list[Kept]] = defaultdict(list)
        for line in lines:
            layers[order[line.file][0]].append(line)
        folder = self.folder / key / "rank-00"
        folder.mkdir(parents=True)
        for layer, ours in layers.items():
            ours.sort(key=lambda line: (order[line.file], line.number))
            path = folder / f"{layer:05d}.jsonl"
            with path.open("wb") as file:
                file.writelines(line.text + b"\n" for line in ours)
            self._places[str(path)] = [(str(self._root / files[one.file].name), one.number) for one in ours]

    def original(self, file: str, line: int | None) -> tuple[str, int | None]:
        """Where a line of the spool was read."""
        places = self._places.get(file)
        if places is None or line is None or not 0 < line <= len(places):
            return file, line
        return places[line - 1]

    def retold(self, text: str) -> str:
        """A message with the places of the lines' own files."""
        if str(self.folder) not in text:
            return text
        for spooled in self._places:
            head, found, rest = text.partition(spooled)
            numbered = list(_PLACE.finditer(head))
            if found and numbered and numbered[-1].end() == len(head):
                file, number = self.original(spooled, int(numbered[-1][1]))
                text = f"{head[: numbered[-1].start()]}line {number} of {file}{rest}"
        return text

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _in_order(files: Sequence[SourceFile]) -> list[tuple[int, int]]:
    """For each file its place among those of its rank, and among all, in the order in which `check` reads."""
    order = sorted(range(len(files)), key=lambda place: Path(files[place].name).parts)
    counts: dict[int | None, int] = defaultdict(int)
    placed: dict[int, tuple[int, int]] = {}
    for number, place in enumerate(order):
        rank = files[place].rank
        placed[place] = counts[rank], number
        counts[rank] += 1
    return [placed[place] for place in range(len(files))]
