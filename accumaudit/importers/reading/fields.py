"""Named numbers in the pieces of many lines, as columns; imported late, as it needs Arrow."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from accumaudit.importers.reading.values import LARGEST, number

_TIME: Final = r"\b(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:,(?P<part>\d{3}))?"


class Fields:
    """The pieces between the separators of each line: `| lm loss: 2.5 |` holds the number `lm loss`.

    The last piece of a line holds its end, and has no separator behind it: it may be torn, and is no number.
    """

    def __init__(self, lines: pa.Array, separator: str) -> None:
        pieces = pc.split_pattern(lines, separator)
        self.count = len(lines)
        self.first: pa.Array = pc.list_element(pieces, 0)
        """The piece before the first separator of each line."""
        self._pieces = pieces.flatten()
        self._rows = pc.list_parent_indices(pieces)
        self._all_rows = pa.array(list(range(self.count)), pa.int64())

    def numbers(self, *beginnings: str) -> pa.Array:
        """The numbers behind one of these beginnings of a piece, as a column; the first of a line counts."""
        column = pa.nulls(self.count, pa.float64())
        for beginning in beginnings:
            if not column.null_count:
                break
            column = pc.coalesce(column, self._behind(beginning))
        return column

    def _behind(self, beginning: str) -> pa.Array:
        found = pc.starts_with(self._pieces, beginning)
        if not found.true_count:
            return pa.nulls(self.count, pa.float64())
        pieces = self._pieces.filter(found)
        texts = pc.utf8_slice_codeunits(pieces, len(beginning))
        whole = pc.invert(pc.ends_with(pieces, "\n"))
        values = numbers_of(pc.if_else(whole, texts, pa.scalar(None, pa.string())))
        if len(values) == self.count and found.true_count == self.count:
            rows = self._rows.filter(found)
            if rows.equals(self._all_rows):
                return values
        return values.take(pc.index_in(self._all_rows, self._rows.filter(found).cast(pa.int64())))


def numbers_of(texts: pa.Array) -> pa.Array:
    """The numbers that texts are, in every spelling; null where one is none."""
    trimmed = pc.ascii_trim(texts, characters=" \t\r\n\"'{}")
    try:
        return trimmed.cast(pa.float64())
    except pa.ArrowInvalid:
        return pa.array([number(text) for text in trimmed.to_pylist()], pa.float64())


def counts_of(numbers: pa.Array) -> pa.Array:
    """Numbers as integers; null where one is none, or beyond 53 bits."""
    sound = pc.and_kleene(pc.is_finite(numbers), pc.less_equal(pc.abs(numbers), LARGEST))
    return pc.if_else(sound, numbers, pa.scalar(None, pa.float64())).cast(pa.int64(), safe=False)


def times_in(lines: pa.Array) -> pa.Array:
    """The first time in each line, in seconds since 1970 as if it were UTC; null where there is none."""
    found = pc.extract_regex(lines, _TIME)
    if found.null_count == len(found):
        return pa.nulls(len(found), pa.float64())
    times = pc.strptime(pc.struct_field(found, "time"), "%Y-%m-%d %H:%M:%S", "s", error_is_null=True)
    parts = pc.struct_field(found, "part")
    parts = pc.if_else(pc.equal(parts, ""), pa.scalar("0", pa.string()), parts)
    return pc.add(times.cast(pa.int64()).cast(pa.float64()), pc.divide(parts.cast(pa.float64()), 1000.0))


def where_any(values: pa.Array, text: str) -> pa.Array:
    """A text in each row that has a value."""
    return pc.if_else(pc.is_valid(values), text, pa.scalar(None, pa.string()))
