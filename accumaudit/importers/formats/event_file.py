"""The values in event files as TensorBoard reads them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from accumaudit import event_format
from accumaudit.event_format import HEADER, DamageError
from accumaudit.importers.reading.log import Log, LogError
from accumaudit.importers.records import Records

LONGEST_VERSION: Final = 1000
"""Bytes of the first event, which holds the version."""

OWN: Final = b"accumaudit"
"""Stands in the first event of what accumaudit itself exported: that is no log of a training."""

_VERSION: Final = b"brain.Event:"
_MISSING: Final = (
    "reading event files needs google-crc32c and protobuf; install accumaudit with its dependencies"
)
_CONTENTS: Final = {event_format.FLOAT: struct.Struct("<f"), event_format.DOUBLE: struct.Struct("<d")}
"""How a tensor of one number lies in its bytes, by dtype."""


class Value(NamedTuple):
    """One value of an event."""

    record: int
    """The number of the record in its file, from 1."""
    time: float
    step: int
    tag: str
    number: float | None
    """None where it is a text, or no scalar."""
    text: bytes | None


def is_event_file(head: bytes) -> bool:
    """Whether a file begins with a record that names the version of event files."""
    if len(head) < HEADER.size:
        return False
    length, _ = HEADER.unpack_from(head)
    first = head[HEADER.size : HEADER.size + length]
    return length <= LONGEST_VERSION and _VERSION in first and OWN not in first


def values(log: Log, records: Records) -> Iterator[Value]:
    """Give all values of an event file; damage is told to `records`.

    Raises:
        LogError: the file cannot be read any further.
    """
    try:
        yield from _values(log, records)
    except DamageError as error:
        raise LogError(str(error)) from None
    except ImportError:
        raise LogError(_MISSING) from None


def _values(log: Log, records: Records) -> Iterator[Value]:
    parse = event_format.message("Event").FromString
    tags: dict[bytes, str] = {}  # few, and each thousands of times
    for number, data in event_format.unframed(log.pieces(), records.damage):
        try:
            event: Any = parse(data)
        except Exception:  # DecodeError, which has another home in each version
            records.damage(number, "the record is no event")
            continue
        for value in event.summary.value:
            tag = tags.get(value.tag)
            if tag is None:
                tag = tags[value.tag] = value.tag.decode("utf-8", "replace")
            if value.HasField("simple_value"):
                yield Value(number, event.wall_time, event.step, tag, value.simple_value, None)
            else:
                yield Value(number, event.wall_time, event.step, tag, *_content(value.tensor))


def _content(tensor: Any) -> tuple[float | None, bytes | None]:
    """The number or the text in a tensor that holds but one."""
    for held in (tensor.floats, tensor.doubles):
        if len(held) == 1:
            return held[0], None
    if tensor.texts:
        return None, tensor.texts[0]
    layout = _CONTENTS.get(tensor.dtype)
    if layout is not None and len(tensor.content) == layout.size:
        return layout.unpack(tensor.content)[0], None
    return None, None
