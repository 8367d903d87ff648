"""Finds the ledger files below a folder that is watched, a little at a time."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from accumaudit.ledger.sources import SEARCH_DEPTH

LEDGER_SUFFIX: Final = ".jsonl"

ENTRIES: Final = 200_000
"""Folders or ledger files in one folder that are found."""

_RANK_FOLDER: Final = re.compile(r"rank-\d+")


@dataclass(frozen=True, slots=True)
class Found:
    """A ledger file."""

    run: str
    """The run's folder below the one that is watched; "." for that one itself."""
    file: str
    """Below the folder that is watched."""


class Search:
    """One walk through the folders, as a check would look for runs; folders behind links are left out."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.unreadable: set[str] = set()
        """Folders that could not be read, so many as are told apart."""

    def files(self) -> Iterator[Found | None]:
        """The files; None after each folder, where the walk may pause.

        Raises:
            OSError: the folder itself cannot be read.
        """
        os.scandir(self._root).close()
        if _RANK_FOLDER.fullmatch(Path(self._root).resolve().name):
            yield from (Found(".", name) for name in self._names("", folders=False))
        yield from self._below("", SEARCH_DEPTH)

    def _below(self, folder: str, depth: int) -> Iterator[Found | None]:
        folders = self._names(folder, folders=True)
        yield None
        found = False
        for rank in filter(_RANK_FOLDER.fullmatch, folders):
            for name in self._names(_join(folder, rank), folders=False):
                found = True
                yield Found(folder or ".", _join(folder, rank, name))
            yield None
        if depth and not found:
            for inner in folders:
                yield from self._below(_join(folder, inner), depth - 1)

    def _names(self, folder: str, *, folders: bool) -> list[str]:
        """The folders in a folder, or its ledger files, by name."""
        try:
            with os.scandir(_join(self._root, folder)) as scan:
                wanted = filter(_is_folder if folders else _is_ledger, scan)
                return sorted(entry.name for entry in islice(wanted, ENTRIES))
        except FileNotFoundError:
            return []  # it has gone since it was seen
        except OSError:
            if len(self.unreadable) < ENTRIES:
                self.unreadable.add(folder)
            return []


def _is_ledger(entry: os.DirEntry[str]) -> bool:
    """Whether an entry of a rank's folder is a file that is followed."""
    return entry.name.endswith(LEDGER_SUFFIX) and _is_named(entry) and _is_file(entry)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return _is_named(entry) and entry.is_dir(follow_symlinks=False)


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link that leads in circles
        return False


def _is_named(entry: os.DirEntry[str]) -> bool:
    """Hidden ones are passed over, and those whose names are no text."""
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        return False
    return not entry.name.startswith(".")


def _join(*parts: str) -> str:
    return "/".join(filter(None, parts))
