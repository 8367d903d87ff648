"""Finds lines in the files of a ledger: their numbers, and why some of them are no records."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

from accumaudit.ledger.recovery import open_bytes
from accumaudit.ledger.schema import FIELDS
from accumaudit.ledger.sources import Source
from accumaudit.ledger.sums import LISTS

BLANK: Final = b" \t\r\n\x0b\x0c"
"""A line of these alone is not counted by DuckDB's reader."""

EXCERPT: Final = 40
"""Characters of a wrong value that a message repeats."""

_PYTHON_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "BIGINT": (int,),
    "DOUBLE": (int, float),
    "VARCHAR": (str,),
}


def find_lines(source: Source, ordinals: Iterable[int]) -> Iterator[tuple[int, int, bytes]]:
    """Give (ordinal, number, text) of the lines with these ordinals among those that are not blank."""
    wanted = sorted(set(ordinals), reverse=True)
    if source.kind not in ("plain", "gzip"):
        return
    ordinal = 0
    try:
        with open_bytes(source) as file:
            for number, line in enumerate(file, 1):
                if not wanted:
                    return
                ordinal += bool(line.strip(BLANK))
                if ordinal == wanted[-1]:
                    yield wanted.pop(), number, line
    except (OSError, EOFError, zlib.error):
        return  # a damaged file is reported as such; it has no more lines to show


def explain(line: bytes) -> str:
    """Say why a line is no record, or which of its lists disagree."""
    try:
        record = json.loads(line.decode("utf-8-sig"))
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeDecodeError:
        return "not text in UTF-8"
    except UnicodeEncodeError:
        return "an escape in it is half a character (a lone surrogate)"
    except RecursionError:
        return "nested too deeply"
    except json.JSONDecodeError as error:
        return _explain_json(error, line)
    except ValueError as error:
        return f"not JSON ({error})"
    if not isinstance(record, dict):
        return f"not a JSON object: {_excerpt(record)}"
    return _explain_record(record)


def _explain_json(error: json.JSONDecodeError, line: bytes) -> str:
    if error.msg == "Extra data":
        return "more than one JSON value in the line"
    if not line.endswith(b"\n"):
        return "torn: the file ends inside this record"
    return f"not JSON ({error.msg}, column {error.colno})"


def _explain_record(record: dict[str, Any]) -> str:
    kind = record.get("record")
    if kind is None:
        return "no field `record`, so it is no line of a ledger"
    fields = FIELDS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        return f"unknown kind of record: {_excerpt(kind)}"
    for field in fields:
        value = record.get(field.name)
        if field.required and value is None:
            return f"a record `{kind}` without the field `{field.name}`"
        if field.required and not isinstance(value, _PYTHON_TYPES[field.type]):
            return f"the field `{field.name}` is {_excerpt(value)}, not a {field.type}"
        if field.required and isinstance(value, int) and abs(value) > 2**53:
            return f"the field `{field.name}` is {_excerpt(value)}, which is no integer of 53 bits"
    return _explain_lists(record)


def _explain_lists(record: dict[str, Any]) -> str:
    lengths = {name: len(record[name]) for name in LISTS if isinstance(record.get(name), list)}
    count = record.get("microbatches")
    if len({*lengths.values()}) <= 1 and count in (None, *lengths.values()):
        return "a value that no field can hold"
    seen = ", ".join(f"{name} {length}" for name, length in lengths.items())
    return f"lists of different lengths are taken as unknown: microbatches is {_excerpt(count)}, {seen}"


def _excerpt(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= EXCERPT else text[:EXCERPT] + "..."
