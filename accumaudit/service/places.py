"""How far a file has been read: enough to go on there, and to notice that it is another file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Attention = Literal["followed", "at rest", "removed"]
"""How a file is watched: `removed` is at rest, and read from its beginning if it is written again."""

TAIL: Final = 64
"""Bytes before the place by which the file is known again."""

HEAD: Final = 4096
"""Bytes at its beginning, at most, by which a file is told from another."""

_MARKS: Final = 8
_RUN_LINES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place in a file, between two lines or inside one that is too long."""

    device: int = 0
    inode: int = 0
    offset: int = 0
    lines: int = 0
    """Before the offset."""
    inside: bool = False
    """The offset lies in a line that is too long and was given up."""
    tail: str = ""
    """Hash of the bytes before the offset, at most TAIL of them."""
    head: str = ""
    """Hash of the first `head_length` bytes."""
    head_length: int = 0
    keep: int = 1
    """The first line that is needed again after a restart."""
    marks: tuple[tuple[int, int], ...] = ((1, 0),)
    """Numbers of lines and where they begin, for finding that one; the first is not behind it."""
    run_lines: tuple[tuple[int, int], ...] = ()
    """Lines that begin launches: the first, and the newest."""
    attention: Attention = "followed"
    size: int = 0
    """Of the file when it was put to rest."""

    def as_json(self) -> dict[str, Any]:
        """For the store."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def of_json(cls, value: Any) -> Place:
        """The one that was saved.

        Raises:
            ValueError: it is none.
        """
        try:
            return cls(**{**value, "marks": _pairs(value["marks"]), "run_lines": _pairs(value["run_lines"])})
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"no place in a file: {error}") from error

    @property
    def identity(self) -> tuple[int, int]:
        """Of the file."""
        return self.device, self.inode

    @property
    def again(self) -> tuple[int, int]:
        """The number and the beginning of the line from which lines are read again."""
        return self.marks[0]


def with_mark(marks: tuple[tuple[int, int], ...], number: int, offset: int) -> tuple[tuple[int, int], ...]:
    """The marks with another at the end; where they are too many, every second goes."""
    if marks and marks[-1][0] >= number:
        return marks
    more = (*marks, (number, offset))
    return more if len(more) <= _MARKS else more[::2]


def with_run_lines(
    before: tuple[tuple[int, int], ...], found: Sequence[tuple[int, int]]
) -> tuple[tuple[int, int], ...]:
    """The lines that begin launches, with more of them: the first stays, and the newest."""
    more = (*before, *found)
    return more if len(more) <= _RUN_LINES else (more[0], *more[1 - _RUN_LINES :])


def from_line(marks: tuple[tuple[int, int], ...], number: int) -> tuple[tuple[int, int], ...]:
    """The marks without those that lie before what is needed from this line on."""
    first = max((index for index, mark in enumerate(marks) if mark[0] <= number), default=0)
    return marks[first:]


def digest(data: bytes) -> str:
    """A short hash."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _pairs(value: Any) -> tuple[tuple[int, int], ...]:
    return tuple((int(number), int(offset)) for number, offset in value)
