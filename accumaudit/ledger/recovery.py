"""Saves what can be read of a damaged file: compressed data that end early, lines beyond all bounds."""

from __future__ import annotations

import gzip
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, cast

from accumaudit.ledger.sources import Source

CHUNK: Final = 2**20
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
CUT_OFF: Final = 2**42 + 1
"""A place beyond any file; as the header of a block it says that the block is large and the last."""

ENDS_EARLY: Final = "the compressed data end early; the records up to there were read"


@contextmanager
def readable_copy(source: Source, limit: int) -> Iterator[tuple[Path | None, str | None]]:
    """Give a plain copy of the file as far as it can be read, and what stopped there, if anything did.

    A line above the limit becomes a line that is no record, so that later lines keep their numbers.
    """
    if source.kind not in ("plain", "gzip"):
        yield None, None
        return
    with tempfile.TemporaryDirectory(prefix="accumaudit-") as folder:
        copy = Path(folder).resolve() / "copy.jsonl"
        with copy.open("wb") as target:
            why = _copy(source, target, limit)
        yield copy, why


def open_bytes(source: Source) -> IO[bytes]:
    """Open a plain or gzipped file for reading its text."""
    if source.kind == "gzip":
        return cast(IO[bytes], gzip.open(source.absolute, "rb"))
    return Path(source.absolute).open("rb")


def _copy(source: Source, target: IO[bytes], limit: int) -> str | None:
    try:
        with open_bytes(source) as file:
            _copy_lines(file, target, limit)
    except EOFError:
        return ENDS_EARLY
    except (OSError, zlib.error) as error:
        return f"cannot be read to its end ({error}); the records up to there were read"
    return None


def _copy_lines(file: IO[bytes], target: IO[bytes], limit: int) -> None:
    start = 0
    while piece := file.readline(CHUNK):
        if target.tell() - start + len(piece) > limit:
            target.seek(start)
            target.truncate()
            piece = b"x\n" if piece.endswith(b"\n") else b"x"
        target.write(piece)
        if piece.endswith(b"\n"):
            start = target.tell()


def zstd_ends_early(path: Path) -> bool:
    """Whether a file of zstd frames stops inside one, which DuckDB passes over in silence."""
    size = path.stat().st_size
    end = 0
    with path.open("rb") as file:
        while end < size:
            file.seek(end)
            end = _frame_end(file)
    return end > size


def _frame_end(file: IO[bytes]) -> int:
    """Where the frame that begins here ends by its headers; far away if it is cut off (RFC 8878)."""
    magic = file.read(4)
    if magic[1:] == b"\x2a\x4d\x18":  # a skippable frame
        return _number(file, 4) + file.tell()
    if magic != ZSTD_MAGIC:
        return CUT_OFF
    descriptor = _number(file, 1)
    single_segment = descriptor >> 5 & 1
    content_size = (single_segment, 2, 4, 8)[descriptor >> 6 & 3]
    file.seek((1 - single_segment) + (0, 1, 2, 4)[descriptor & 3] + content_size, os.SEEK_CUR)
    last = False
    while not last:
        header = _number(file, 3)
        last = bool(header & 1)
        repeated = header >> 1 & 3 == 1
        file.seek(1 if repeated else header >> 3, os.SEEK_CUR)
    return file.tell() + 4 * (descriptor >> 2 & 1)


def _number(file: IO[bytes], width: int) -> int:
    """The next number, of so many bytes."""
    data = file.read(width)
    return int.from_bytes(data, "little") if len(data) == width else CUT_OFF
