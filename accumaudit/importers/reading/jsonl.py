"""Lines of JSON, read one by one, whatever stands between them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from accumaudit.importers.reading.log import Log
from accumaudit.importers.records import Records

LONGEST_OBJECT: Final = 2**22
"""Characters of a line above which it is not parsed: an object takes many times their memory."""

_DECODER: Final = json.JSONDecoder()


def objects(log: Log, records: Records) -> Iterator[tuple[int, dict[str, Any]]]:
    """Give each object of a log and its line; lines that hold none are told to `records`.

    Raises:
        LogError: the log cannot be read any further.
    """
    decode = _DECODER.raw_decode
    for number, line in log.lines():
        if len(line) > LONGEST_OBJECT:
            records.damage(number, f"longer than the {LONGEST_OBJECT:,} characters that an object may have")
            continue
        try:
            found, end = decode(line)
        except (ValueError, RecursionError):
            found, end = None, 0
        if end == len(line) and type(found) is dict:
            yield number, found
        else:
            yield from _pieces(number, line.strip(" \t\ufeff"), records)
            if records.given_up():
                return


def _pieces(number: int, text: str, records: Records) -> Iterator[tuple[int, dict[str, Any]]]:
    """Give the whole objects of a line to which a second writer added, or which was torn."""
    place = 0
    while place < len(text):
        try:
            found, place = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            records.damage(number, f"no whole JSON object ({_brief(error)})")
            return
        if not isinstance(found, dict):
            records.damage(number, "no JSON object")
            return
        yield number, found
        while place < len(text) and text[place].isspace():
            place += 1


def _brief(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)
