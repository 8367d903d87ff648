"""One file of a foreign log, read as it is: in bounded pieces, whatever the bytes are."""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Final

BLOCK: Final = 2**21
"""Bytes that are read at a time; a block then ends with a whole line."""

LONGEST_LINE: Final = 2**24
"""Bytes of a line above which the line is passed over."""

LONGEST_DOCUMENT: Final = 2**29
"""Bytes of a file that has to be read as a whole."""

HEAD: Final = 2**18
"""Bytes at the beginning that tell what a structured file is."""

SEARCHED: Final = 2**26
"""Bytes of a text in which the first record, or the end, is looked for."""

LARGEST_GROWTH: Final = 100
"""How many times its length compressed text may grow; logs grow 5 to 25 times, and a bomb 1,000."""

FREE_GROWTH: Final = 2**23
"""Bytes up to which growth is no matter."""

_COLOUR: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_ESCAPES: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
"""Sequences that a terminal obeys."""


class LogError(Exception):
    """A log that cannot be read, or not any further; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the caller says of all foreign logs."""

    arguments: Path | None = None
    """A file with the hyperparameters of the run."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The columns of a table by the fields that they are: `{"step": "iter"}`."""
    on_start: Callable[[str, int], object] = lambda _what, _length: None
    """Is told what begins, and of how many bytes."""
    on_read: Callable[[int], object] = lambda _: None
    """Is told how many more bytes of them were read."""


class Log:
    """The bytes and the lines of one file; gzip is undone."""

    def __init__(self, path: Path, options: Options | None = None) -> None:
        self.path = path
        self.options = options or Options()
        self.trouble = ""
        """Why not even the first byte could be read."""

    @cached_property
    def head(self) -> bytes:
        """The first bytes, uncompressed; empty where the file cannot be read, and `trouble` tells why."""
        head = b""
        try:
            for piece in self._pieces():
                head += piece
                if len(head) >= HEAD:
                    break
        except LogError as error:
            self.trouble = str(error) if not head else ""  # else it is told when the file is read
        return head[:HEAD]

    @cached_property
    def end(self) -> bytes:
        """The last bytes, uncompressed, as far as they are looked for."""
        end, done = b"", 0
        try:
            for piece in self._pieces(max(0, self.path.stat().st_size - HEAD)):
                end = (end + piece)[-HEAD:]
                done += len(piece)
                if done > SEARCHED:
                    break
        except (OSError, LogError):
            pass  # what stands before the damage is the end
        return end

    def blocks(self, limit: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Give whole lines together, with the number of the first; a line that is far too long is left out.

        Args:
            limit: bytes after which to stop.

        Raises:
            LogError: the data end early, cannot be read, or grow without bounds.
        """
        number, done, rest, skipping = 1, 0, b"", False
        failure: LogError | None = None
        pieces = self._pieces(on_read=None if limit else self.options.on_read)
        while True:
            try:
                piece = next(pieces, b"")
            except LogError as error:
                failure, piece = error, b""
            if not piece:
                break
            done += len(piece)
            if skipping:
                _, newline, piece = piece.partition(b"\n")
                skipping = not newline
                number += len(newline)
            whole, newline, after = piece.rpartition(b"\n")
            if newline:
                block = rest + whole + newline
                yield number, block
                number += block.count(b"\n")
                rest = after
            elif not skipping:
                rest += piece
            if len(rest) > LONGEST_LINE:
                rest, skipping = b"", True
            if limit is not None and done >= limit:
                return
        if rest:
            yield number, rest
        if failure is not None:
            raise failure

    def texts(self, limit: int | None = None) -> Iterator[tuple[int, str]]:
        """Give the blocks as text without terminal codes; bad UTF-8 is replaced."""
        for number, block in self.blocks(limit):
            yield number, text_of(block)

    def lines(self, limit: int | None = None) -> Iterator[tuple[int, str]]:
        """Give each line and its number; what carriage returns part are lines of the same number."""
        for first, text in self.texts(limit):
            for number, line in enumerate(text.split("\n"), first):
                if "\r" in line:
                    for part in line.split("\r"):
                        if part:
                            yield number, part
                elif line:
                    yield number, line

    def scan(self, pattern: re.Pattern[str]) -> Iterator[tuple[int, re.Match[str]]]:
        """Give each match in the text with the number of its line; the pattern crosses no line."""
        for number, text in self.texts():
            last = 0
            for match in pattern.finditer(text):
                start = match.start()
                number += text.count("\n", last, start)
                last = start
                yield number, match

    def document(self) -> bytes:
        """The whole file.

        Raises:
            LogError: it cannot be read, or is too long.
        """
        parts, length = [], 0
        for piece in self._pieces(on_read=self.options.on_read):
            length += len(piece)
            if length > LONGEST_DOCUMENT:
                raise LogError(f"longer than the {LONGEST_DOCUMENT:,} bytes that are read as a whole")
            parts.append(piece)
        return b"".join(parts)

    def pieces(self) -> Iterator[bytes]:
        """Give the bytes as they come, for what has no lines.

        Raises:
            LogError: the data end early, cannot be read, or grow without bounds.
        """
        return self._pieces(on_read=self.options.on_read)

    def beside(self, *names: str) -> Iterator[Path]:
        """Give the files in its folder that have one of these names.

        `run7.trainer_state.json` also has `run7.args.json` beside it.
        """
        parts = self.path.name.split(".")
        prefixes = [".".join(parts[:count]) + "." for count in range(len(parts) - 1, 0, -1)]
        prefixes.append("")  # what belongs to this log alone goes first
        for name in names:
            for prefix in prefixes:
                path = self.path.parent / f"{prefix}{name}"
                if path != self.path and path.is_file():
                    yield path

    def _pieces(self, start: int = 0, on_read: Callable[[int], object] | None = None) -> Iterator[bytes]:
        """The bytes, in UTF-8 where they were in UTF-16; from `start` on, unless they are compressed."""
        try:
            with self.path.open("rb") as file:
                packed = file.peek(2).startswith(b"\x1f\x8b")
                if start and not packed:
                    file.seek(start)
                yield from _in_utf8(_read(file, on_read, packed=packed))
        except EOFError:
            raise LogError("the compressed data end early; the records up to there were read") from None
        except (OSError, zlib.error) as error:
            raise LogError(f"cannot be read to its end ({reason(error)})") from None


def text_of(data: bytes) -> str:
    """The text without terminal codes and NUL bytes; bad UTF-8 is replaced."""
    text = data.decode("utf-8", "replace")
    if "\x1b" in text:
        text = _COLOUR.sub("", text)  # nearly all of them, and the quicker pattern
    if "\x00" in text:
        text = text.replace("\x00", "")
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def reason(error: Exception) -> str:
    """An error of the system, or of compressed data, without the name of the file."""
    return getattr(error, "strerror", None) or str(error)


def _read(file: BufferedReader, on_read: Callable[[int], object] | None, *, packed: bool) -> Iterator[bytes]:
    """The bytes of a file, unpacked."""
    unpacked = gzip.GzipFile(fileobj=file) if packed else file
    done = told = 0
    while piece := unpacked.read1(BLOCK):  # what there is, so that damage costs no more than it must
        place = file.tell()
        if on_read is not None:
            on_read(place - told)
            told = place
        done += len(piece)
        if packed and done > max(FREE_GROWTH, LARGEST_GROWTH * place):
            raise LogError(
                f"the compressed data grow more than {LARGEST_GROWTH} times, as no log does; "
                "they were read no further"
            )
        yield piece


def _in_utf8(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Windows consoles write UTF-16, and say so with its mark."""
    first = next(pieces, b"")
    if not first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        yield from chain([first.removeprefix(codecs.BOM_UTF8)], pieces)
        return
    decode = codecs.getincrementaldecoder("utf-16")("replace").decode
    for piece in chain([first], pieces):
        yield decode(piece).encode("utf-8", "replace")
