"""Logbooks in Markdown that quote Megatron's lines in fenced blocks.

Nothing ties one quote to the next: they may be of other runs, or of the same iterations tried again. So each
is a run by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from accumaudit.importers.format import Format
from accumaudit.importers.formats import megatron
from accumaudit.importers.reading.log import Log
from accumaudit.importers.records import Records

if TYPE_CHECKING:
    from accumaudit.importers.reading.grep import Columns

WRAPPED: Final = 4
"""Lines on which a record may stand that an editor wrapped."""

_FENCE: Final = re.compile(r" {0,3}(?:```|~~~)")
_RECORD: Final = re.compile(megatron.RECORD)
_QUOTE: Final = re.compile(
    rb"^ {0,3}```[^\n]*\n(?:(?! {0,3}```)[^\n]*\n)*?"
    rb"(?! {0,3}```)[^\n]*\biteration\s+\d{1,15}/\s*\d{1,15}\s*\|",
    re.MULTILINE,
)

Quote = list[tuple[int, str]]
"""Lines, each with its number."""


def read(log: Log, records: Records) -> None:
    """Give the records of each quote."""
    for quote in _quotes(log):
        for part in _rising(_unwrapped(quote), records):
            total = part.pop("total")[-1].as_py()
            records.begin(runtime="megatron", planned_updates=total)
            skips = megatron.Skips()
            records.extend(part | skips.columns(part, part.pop("skipped"), hidden=False))


def _quotes(log: Log) -> Iterator[Quote]:
    quote: Quote | None = None
    for line, text in log.lines():
        if _FENCE.match(text):
            if quote:
                yield quote
            quote = [] if quote is None else None
        elif quote is not None:
            quote.append((line, text))
    if quote:
        yield quote


def _unwrapped(quote: Quote) -> Quote:
    """The records of a quote, each on one line."""
    found: Quote = []
    parts = 0
    """Lines of the last record; 0 where it has ended."""
    for line, text in quote:
        if _RECORD.search(text):
            found.append((line, text.rstrip()))
            parts = 1
        elif parts and not found[-1][1].endswith("|") and parts < WRAPPED:
            before = found[-1]
            found[-1] = before[0], f"{before[1]} {text.strip()}"
            parts += 1
        else:
            parts = 0
    return found


def _rising(quote: Quote, records: Records) -> Iterator[Columns]:
    """The records as columns, in parts in which the steps go up."""
    if not quote:
        return
    import pyarrow as pa

    from accumaudit.importers.formats import megatron_lines
    from accumaudit.importers.reading import grep

    numbers = pa.array([line for line, _ in quote], pa.int64())
    lines = pa.array([f"{text}\n" for _, text in quote], pa.string())
    columns = megatron_lines.columns(numbers, lines, records)
    for rows, _ in grep.rising(columns, strictly=True):
        yield rows


FORMAT: Final = Format(
    name="logbook",
    title="the logbook",
    read=read,
    begins=lambda head: b"```" in head and _QUOTE.search(head) is not None,
)
