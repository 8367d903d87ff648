"""Finds the lines of a text that matter, many at once; imported late, as it needs Arrow.

A long log is mostly lines that say nothing. Arrow's expressions pass over them at hundreds of megabytes a
second, and Python sees what is left.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from accumaudit.importers.reading.log import Log

LONGEST: Final = 2**16
"""Characters of a line that are looked at where it is no record."""

LATE_ROWS: Final = 256
"""Rows after which a copy of one may still come from another rank."""

LATE_STEPS: Final = 2
"""Steps of others that a late rank may lie behind."""

COMPARED: Final = ("reported_loss", "grad_norm_before_clip", "learning_rate")
"""What is the same in copies of a row."""

LINE_FEED: Final = 10
CARRIAGE_RETURN: Final = 13

_RETURNS: Final = re.compile(rb"\r{2,}")


Columns = dict[str, pa.Array]
"""Fields of the schema, and what an importer wants besides; of one length, `seq` among them."""


class Reader(Protocol):
    """Follows the runs of a log."""

    def tell(self, line: int, text: str, /) -> None:
        """Hear of a line that is no record."""

    def add(self, columns: Columns, /) -> None:
        """Take records that follow each other."""

    def finish(self) -> None:
        """Nothing more is coming."""


@dataclass(frozen=True, slots=True)
class Told:
    """A line that is no record."""

    line: int
    text: str


def follow(
    log: Log, reader: Reader, record: str, told: str, columns: Callable[[pa.Array, pa.Array], Columns]
) -> None:
    """Give a reader all that `walk` finds, in the order of the text."""
    for found in walk(log, record, told, columns):
        if isinstance(found, Told):
            reader.tell(found.line, found.text)
        else:
            reader.add(found)
    reader.finish()


def walk(
    log: Log, record: str, told: str, columns: Callable[[pa.Array, pa.Array], Columns]
) -> Iterator[Columns | Told]:
    """Give the records of a log as columns, many at once, and between them lines that tell something else.

    Args:
        log: the text.
        record: found in each line that holds a record; patterns are in the dialect of RE2.
        told: found in the other lines that matter.
        columns: makes columns of the numbers and the texts of such lines; what is no record may be left out.

    Raises:
        LogError: the log cannot be read any further.
    """
    for numbers, lines in line_arrays(log):
        found = pc.match_substring_regex(lines, record)
        rows = columns(numbers.filter(found), lines.filter(found)) if found.true_count else {}
        places = rows["seq"].to_pylist() if rows else []
        done = 0
        for line, text in _among(numbers, lines, pc.invert(found), told):
            upto = bisect_right(places, line, done)
            if upto > done:
                yield cut(rows, done, upto)
            yield Told(line, text)
            done = upto
        if len(places) > done:
            yield cut(rows, done, len(places))


def rising(
    columns: Columns, name: str = "attempt_id", *, strictly: bool = False
) -> Iterator[tuple[Columns, list[int]]]:
    """Give the rows, and the numbers of a column, in parts in which these do not go back.

    Unless `strictly`, a row that a rank printed late, after the next of another, is no step back.
    """
    numbers = columns[name].to_pylist()
    backs = [
        place
        for place, (one, after) in enumerate(pairwise(numbers), 1)
        if (strictly and after == one)
        or (after < one and (strictly or not _is_late(columns, numbers, place)))
    ]
    for start, stop in zip([0, *backs], [*backs, len(numbers)], strict=True):
        if stop > start:
            yield cut(columns, start, stop), numbers[start:stop]


def _is_late(columns: Columns, numbers: list[int], place: int) -> bool:
    """Whether a row is a copy of one just before, and of that step's alone."""
    fields = [columns[name] for name in COMPARED if name in columns]
    values = [repr([field[at].as_py() for field in fields]) for at in (place, place - 1)]
    if values[0] == values[1]:
        return False  # a step says nothing by values that others have as well
    passed: set[int] = set()
    for earlier in range(place - 1, max(place - LATE_ROWS, 0) - 1, -1):
        if numbers[earlier] == numbers[place]:
            return repr([field[earlier].as_py() for field in fields]) == values[0]
        passed.add(numbers[earlier])
        if len(passed) > LATE_STEPS:
            break
    return False


def cut(columns: Columns, start: int, stop: int) -> Columns:
    """Some of the rows."""
    if start == 0 and stop == len(columns["seq"]):
        return dict(columns)
    return {name: values.slice(start, stop - start) for name, values in columns.items()}


def _among(numbers: pa.Array, lines: pa.Array, mask: pa.Array, pattern: str) -> Iterator[tuple[int, str]]:
    if mask.true_count:
        if mask.true_count < len(mask):
            numbers, lines = numbers.filter(mask), lines.filter(mask)
        yield from _chosen(numbers, lines, pc.match_substring_regex(lines, pattern))


def _chosen(numbers: pa.Array, lines: pa.Array, mask: pa.Array) -> Iterator[tuple[int, str]]:
    if mask.true_count:
        pairs = zip(numbers.filter(mask).to_pylist(), lines.filter(mask).to_pylist(), strict=True)
        for number, line in pairs:
            yield number, line[:LONGEST].rstrip("\r\n")


def line_arrays(log: Log) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Give the lines of a log, each with its end, and their numbers.

    What carriage returns part are lines of the same number.

    Raises:
        LogError: the log cannot be read any further.
    """
    for first, text in log.texts():
        data = text.encode()
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        if not data.endswith(b"\n"):
            data += b"\n"
        yield _lines(data, first)


def _lines(data: bytes, first: int) -> tuple[pa.Array, pa.Array]:
    """Arrays that share the memory of the text; empty lines belong to the line before them."""
    if b"\r" in data:
        data = _RETURNS.sub(b"\r", data)
    characters = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero((characters == LINE_FEED) | (characters == CARRIAGE_RETURN)) + 1
    starts = np.concatenate([[0], ends[:-1]])
    feeds = characters[ends - 1] == LINE_FEED
    numbers = first + np.cumsum(feeds) - feeds
    full = ends - starts > 1
    offsets = np.append(starts[full], len(data)).astype(np.int32)
    lines = pa.Array.from_buffers(
        pa.string(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    return pa.array(numbers[full], pa.int64()), lines
