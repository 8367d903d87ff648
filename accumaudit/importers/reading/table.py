"""Tables of whatever columns: CSV, and JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from typing import Any, Final

from accumaudit.importers.reading.jsonl import objects
from accumaudit.importers.reading.log import Log
from accumaudit.importers.records import Records

DELIMITERS: Final = ",\t;"

SAMPLED: Final = 20
"""Objects at the beginning that tell what names JSON lines have."""

LONGEST_ROW: Final = 2**20
"""Characters of a row above which it is not parted: its cells would take many times their memory."""

LONGEST_HEADING: Final = 20_000
"""Characters of the names of a table's columns."""


def column_names(head: bytes) -> list[str]:
    """The columns of a table that begins like this; none where it is no table."""
    text = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    if text.startswith("{"):
        return list(dict.fromkeys(name for found in first_objects(head) for name in found))
    lines = [line for line in text[: 2 * LONGEST_HEADING].splitlines() if line.strip()]
    between = delimiter(lines[0]) if lines else ","
    names = _names(lines[0], between) if lines else []
    if len(names) < 2 or len(set(names)) < len(names) or len(lines[0]) > LONGEST_HEADING:
        return []
    # A text that happens to begin with commas has other lines after it.
    return names if len(lines) < 3 or len(_cells(lines[1], between)) == len(names) else []


def first_objects(head: bytes) -> list[dict[str, Any]]:
    """The first objects of JSON lines; none where the first line is no object."""
    found: list[dict[str, Any]] = []
    for line in head.decode("utf-8", "replace").lstrip("\ufeff").split("\n"):
        if len(found) == SAMPLED:
            break
        if line.strip():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                value = None
            if isinstance(value, dict):
                found.append(value)
            elif not found:
                break
    return found


def rows(log: Log, records: Records) -> Iterator[tuple[int, dict[str, Any]]]:
    """Give each row of a table and its line; lines that hold none are told to `records`.

    Raises:
        LogError: the log cannot be read any further.
    """
    if log.head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        yield from objects(log, records)
    else:
        yield from _csv_rows(log, records)


def delimiter(heading: str) -> str:
    """What parts the cells: the one of which the heading has most."""
    return max(DELIMITERS, key=heading.count)


def _csv_rows(log: Log, records: Records) -> Iterator[tuple[int, dict[str, Any]]]:
    heading: list[str] = []
    between = ","
    for number, line in log.lines():
        if not heading:
            if line.strip():
                between = delimiter(line)
                heading = _names(line, between)
            continue
        cells = _cells(line, between) if len(line) <= LONGEST_ROW else []
        if len(cells) == len(heading):
            if cells[0].strip() != heading[0]:  # a second writer or a restart may write it again
                yield number, dict(zip(heading, cells, strict=True))
        elif line.strip():
            count = len(cells) or line.count(between) + 1
            records.damage(number, f"{count:,} cells in a table of {len(heading)} columns")
            if records.given_up():
                return


def _names(heading: str, between: str) -> list[str]:
    return [name.strip() for name in _cells(heading.lstrip("\ufeff"), between)]


def _cells(line: str, between: str) -> list[str]:
    """The cells of one line; a quotation that does not end on it costs this line alone."""
    if '"' not in line:
        return line.split(between)
    try:
        return next(csv.reader([line], delimiter=between), [])
    except csv.Error:  # a cell far too long
        return []
