"""One file that is followed: reads what has been added to it, and knows it again when it is another one."""

from __future__ import annotations

import errno
import os
import stat
import zlib
from dataclasses import replace
from typing import Final

from accumaudit.service.cursor import RUN_LINE, Cursor, line_at
from accumaudit.service.lines import Chunk, Line
from accumaudit.service.places import (
    HEAD,
    TAIL,
    Attention,
    Place,
    digest,
    from_line,
    with_mark,
    with_run_lines,
)

_RUN_RECORD: Final = (b'{"record":"run"', b'{"record": "run"')
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class Tail:
    """A file and how far it has been read.

    Args:
        run: the run's folder, as in `Chunk`.
        file: the file below the folder that is watched.
        place: where another process of the service stopped; its last lines are given again first.
        changed_at: when it was seen to change, by the monotonic clock.
    """

    def __init__(self, run: str, file: str, place: Place | None = None, changed_at: float = 0.0) -> None:
        self.run = run
        self.file = file
        self.place = place or Place()
        self.spread = zlib.crc32(file.encode()) / 2**32
        """From 0 to 1: files are not all looked at in one turn."""
        self.signature: tuple[int, ...] = ()
        """Of the file when it was last looked at: a change of it makes the file be read."""
        self.size = 0
        self.due = 0.0
        """When it is looked at again."""
        self.changed_at = changed_at
        self.missing_since: float | None = None
        self.failures = 0
        """To read it, in a row."""
        self.why = ""
        """It could not be read."""
        self.served = 0
        """The turn in which it was last read."""
        self._cursor = Cursor(self.place.lines, self.place.offset, self.place.inside)
        first, begins = self.place.again
        repeats = self.place.offset > 0 and self.place.attention != "removed"
        self._again = Cursor(first - 1, begins) if repeats else None
        self._begins_again = repeats
        """Nothing has been given again so far."""

    @property
    def settled(self) -> bool:
        """Whether there is nothing to be read now, for all that is known."""
        if self.missing_since is not None or self.failures:
            return True
        return bool(self.signature) and not self.pending

    @property
    def behind(self) -> int:
        """Bytes that were written and not yet read; a torn last line is read, and waits."""
        return max(0, self.size - max(self._cursor.offset, self._cursor.seen))

    @property
    def pending(self) -> bool:
        """Whether there is more to give, as far as is known."""
        return self._again is not None or self.behind > 0

    def keep_from(self, number: int) -> None:
        """The lines from this one on are needed again after a restart."""
        number = min(number, self.place.lines + 1)
        if number > self.place.keep:
            self.place = replace(self.place, keep=number, marks=from_line(self.place.marks, number))

    def attend(self, attention: Attention) -> None:
        """Watch it otherwise."""
        self.place = replace(self.place, attention=attention, size=self.size)

    def renamed(self, file: str) -> None:
        """The file has another name."""
        self.file, self.missing_since, self.signature, self.due = file, None, (), 0.0

    def read(self, root: str, most: int) -> tuple[list[Chunk], int]:
        """The next lines, and how many bytes were read for them.

        Raises:
            OSError: it cannot be read.
        """
        before = self.place, replace(self._cursor), self._again and replace(self._again), self._begins_again
        fd = os.open(f"{root}/{self.file}", _FLAGS)
        try:
            return self._read(fd, most)
        except OSError:
            self.place, self._cursor, self._again, self._begins_again = before
            raise
        finally:
            os.close(fd)

    def _read(self, fd: int, most: int) -> tuple[list[Chunk], int]:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "no regular file")
        self.size = status.st_size
        identity = status.st_dev, status.st_ino
        begins_anew = not self._holds_what_was_read(fd, self.size, known=identity == self.place.identity)
        if self.place.attention == "removed":
            if not begins_anew and self.size == self.place.size:
                return [], 0
            begins_anew = True
        if begins_anew:
            self._begin_anew()
        if identity != self.place.identity:
            self.place = replace(self.place, device=status.st_dev, inode=status.st_ino)
        chunks, read = self._read_again(fd, most) if self._again else ([], 0)
        if self._again is None and read < most:
            lines, more = self._cursor.read(fd, self.size, most - read)
            if self._cursor.offset != self.place.offset:
                self._move(fd, lines)
            read += more
            if lines or begins_anew:
                chunks.append(self._chunk(lines, begins_anew=begins_anew))
        return chunks, read

    def is_same(self, root: str) -> bool:
        """Whether the file under its name now holds what was read, whichever file it is."""
        try:
            fd = os.open(f"{root}/{self.file}", _FLAGS)
        except OSError:
            return False
        try:
            return self._holds_what_was_read(fd, os.fstat(fd).st_size, known=False)
        except OSError:
            return False
        finally:
            os.close(fd)

    def _holds_what_was_read(self, fd: int, size: int, *, known: bool) -> bool:
        """A copy that holds it goes on from the same place, as files do that are synchronised."""
        place = self.place
        if size < place.offset:
            return False
        length = min(TAIL, place.offset)
        if place.offset and digest(os.pread(fd, length, place.offset - length)) != place.tail:
            return False
        return known or digest(os.pread(fd, place.head_length, 0)) == place.head or not place.offset

    def _begin_anew(self) -> None:
        self.place = Place()
        self._cursor = Cursor(0, 0)
        self._again = None

    def _move(self, fd: int, lines: list[tuple[Line, int]]) -> None:
        """Note the new place."""
        cursor, place = self._cursor, self.place
        head, head_length = place.head, place.head_length
        if not head_length:
            head_length = min(HEAD, cursor.offset)
            head = digest(os.pread(fd, head_length, 0))
        length = min(TAIL, cursor.offset)
        found = [(line.number, at) for line, at in lines if _begins_launch(line)]
        marks = place.marks
        if not place.inside:
            marks = with_mark(marks, place.lines + 1, place.offset)
        self.place = replace(
            place,
            offset=cursor.offset,
            lines=cursor.number,
            inside=cursor.inside,
            tail=digest(os.pread(fd, length, cursor.offset - length)),
            head=head,
            head_length=head_length,
            marks=marks,
            run_lines=with_run_lines(place.run_lines, found),
            attention="followed" if lines else place.attention,
        )

    def _read_again(self, fd: int, most: int) -> tuple[list[Chunk], int]:
        """Lines that were given before the restart: those that begin launches, then the newest."""
        cursor, place = self._again, self.place
        assert cursor is not None
        keep = min(place.keep, max(place.lines, 1))
        chunks, read = [], 0
        if self._begins_again:
            self._begins_again = False
            heads = [
                line for number, at in place.run_lines if number < keep for line in line_at(fd, number, at)
            ]
            read = sum(len(line.text) for line in heads)
            if heads:
                chunks.append(Chunk(run=self.run, file=self.file, lines=tuple(heads), again=True))
        lines, more = cursor.read(fd, place.offset, most)
        lines = [(line, at) for line, at in lines if line.number >= keep]
        if lines:
            chunks.append(self._chunk(lines, again=True))
        if not more or cursor.offset >= place.offset:
            self._again = None
        return chunks, read + more

    def _chunk(
        self, lines: list[tuple[Line, int]], *, again: bool = False, begins_anew: bool = False
    ) -> Chunk:
        return Chunk(
            run=self.run,
            file=self.file,
            lines=tuple(line for line, _ in lines),
            again=again,
            begins_anew=begins_anew,
        )


def _begins_launch(line: Line) -> bool:
    """The first line of a file does, and any that begins as the hooks write it."""
    return (line.number == 1 or line.text.startswith(_RUN_RECORD)) and len(line.text) < RUN_LINE
