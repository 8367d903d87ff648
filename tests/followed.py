"""A folder that is followed in a test, by a clock of the test's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from accumaudit.service.following import Follower, Limits
from accumaudit.service.lines import Chunk

Given = tuple[str, int, bytes]
"""File, number and text of a line."""

NAME: Final = "a/rank-00/00000.aaaa.jsonl"
"""Of the file of `three_lines`."""


class Watched:
    """A folder that is followed by a clock of the test's own."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        self.folder = folder
        self.limits = Limits(**limits)
        self.now = 0.0
        self.store: dict[str, Any] = {}
        self.follower = self._start()

    def _start(self) -> Follower:
        return Follower(self.folder, self.store, self.limits, lambda: self.now)

    def chunks(self, seconds: float = 5.0) -> list[Chunk]:
        """What one turn gives after some seconds."""
        self.now += seconds
        return self.follower.turn()

    def lines(self, seconds: float = 5.0) -> list[Given]:
        """The new lines of one turn."""
        return given_in(self.chunks(seconds))

    def all_lines(self) -> list[Given]:
        """The new lines of as many turns as they take."""
        found = self.lines()
        while not self.follower.caught_up:
            found += self.lines()
        return found

    def save(self) -> None:
        for file, place in self.follower.changes().items():
            if place is None:
                del self.store[file]
            else:
                self.store[file] = place
        self.follower.saved()

    def restart(self) -> None:
        """Another process of the service goes on from what was saved."""
        self.follower = self._start()


def given_in(chunks: Sequence[Chunk], *, again: bool = False) -> list[Given]:
    """The lines of chunks, either the new ones or those that are given again."""
    return [(c.file, line.number, line.text) for c in chunks if c.again == again for line in c.lines]


def file_of(folder: Path, rank: int = 0) -> Path:
    return folder / "rank-00" / f"{rank:05d}.aaaa.jsonl"


def append(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)


def three_lines(logs: Path) -> Path:
    """A file of three lines, NAME below this folder."""
    path = logs / NAME
    append(path, b"one\ntwo\nthree\n")
    return path


def read_by(logs: Path) -> Watched:
    """That folder, when the three lines have been read."""
    watched = Watched(logs)
    assert [text for _, _, text in watched.lines()] == [b"one", b"two", b"three"]
    return watched
