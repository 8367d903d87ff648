"""Reads whole lines of an open file from a place on, with bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from accumaudit.service.lines import Line
from accumaudit.service.places import TAIL

LONGEST: Final = 16 << 20
"""Bytes of a line beyond which it is given up."""

GIVEN_UP: Final = b"a line that is too long to be a record"
"""Stands for one: it is no JSON either."""

MOST_LINES: Final = 8192
"""That are read at once: each costs memory, however short."""

RUN_LINE: Final = 64 << 10
"""Bytes, at most, of a line that begins a launch and is given again."""


@dataclass(slots=True)
class Cursor:
    """A place in a file, and what is known of the line that follows."""

    number: int
    """Of the lines before it."""
    offset: int
    inside: bool = False
    """In a line that was given up."""
    seen: int = 0
    """Up to here no line ends after the offset."""
    last: bytes = b""
    """What stood just before that, in the line that has no end."""

    def read(self, fd: int, end: int, most: int) -> tuple[list[tuple[Line, int]], int]:
        """The next whole lines before `end` and where each begins, and how many bytes were read for them.

        A line that is longer than `most` is read in several calls; blank ones are counted and left out.
        """
        start = self._start(fd)
        data = os.pread(fd, max(0, min(most, end - start)), start)
        read = len(data)
        if b"\n" not in data:
            self.seen, self.last = start + read, (self.last + data)[-TAIL:]
            return self._without_end(), read
        if self.inside:
            skipped = data.index(b"\n") + 1
            data = data[skipped:]
            self.number, self.offset, self.inside = self.number + 1, start + skipped, False
        elif start > self.offset:
            before = os.pread(fd, start - self.offset, self.offset)
            read += len(before)
            data = before + data
        self.seen, self.last = 0, b""
        return list(self._split(data)), read

    def _start(self, fd: int) -> int:
        """Where to read on: a line without an end may have been cut off and written anew."""
        if self.seen > self.offset:
            length = len(self.last)
            if os.pread(fd, length, self.seen - length) == self.last:
                return self.seen
            self.seen, self.last = 0, b""
        return self.offset

    def _without_end(self) -> list[tuple[Line, int]]:
        """Go on inside a line that is given up, or give one up now, or wait for its end."""
        begins = self.offset
        if self.inside:
            self.offset, self.last = self.seen, b""
        elif self.seen - self.offset > LONGEST:
            self.offset, self.inside, self.last = self.seen, True, b""
            return [(Line(self.number + 1, GIVEN_UP), begins)]
        return []

    def _split(self, data: bytes) -> Iterator[tuple[Line, int]]:
        *texts, _ = data.split(b"\n", MOST_LINES)
        for text in texts:
            begins = self.offset
            self.number += 1
            self.offset += len(text) + 1
            if len(text) > LONGEST:
                yield Line(self.number, GIVEN_UP), begins
            elif text.strip():
                yield Line(self.number, text), begins


def line_at(fd: int, number: int, offset: int) -> Iterator[Line]:
    """The line that begins here, if it is no longer than one that begins a launch."""
    for most in (4096, RUN_LINE):
        text, ended, _ = os.pread(fd, most, offset).partition(b"\n")
        if ended:
            yield Line(number, text)
            return
