"""Event files as TensorBoard reads them: records with checksums around protocol buffers."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from accumaudit.importers.reading.log import Log, LogError
from accumaudit.importers.records import Records

if TYPE_CHECKING:
    from google.protobuf.message import Message

LONGEST_RECORD: Final = 2**26
"""Bytes of a record above which the length is taken for damage."""

LONGEST_EVENT: Final = 2**22
"""Bytes of a record above which it is passed over: images, sounds, graphs."""

LONGEST_VERSION: Final = 1000
"""Bytes of the first event, which holds the version."""

LENGTHS: Final = 10_000
"""Different lengths of records that are kept in mind."""

_HEADER: Final = struct.Struct("<QI")
_FOOTER: Final = struct.Struct("<I")
_VERSION: Final = b"brain.Event:"

# name, number, type; a message is named by its own name. The numbers are those of TensorFlow's event.proto,
# summary.proto and tensor.proto, and unknown fields are passed over.
_MESSAGES: Final = {
    "Tensor": (
        ("dtype", 1, "int32"),
        ("content", 4, "bytes"),
        ("floats", 5, "float*"),
        ("doubles", 6, "double*"),
        ("texts", 8, "bytes*"),
    ),
    "Value": (("tag", 1, "bytes"), ("simple_value", 2, "float"), ("tensor", 8, "Tensor")),
    "Summary": (("value", 1, "Value*"),),
    "Event": (("wall_time", 1, "double"), ("step", 2, "int64"), ("summary", 5, "Summary")),
}
_CONTENTS: Final = {1: struct.Struct("<f"), 2: struct.Struct("<d")}
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
    if len(head) < _HEADER.size:
        return False
    length, _ = _HEADER.unpack_from(head)
    return length <= LONGEST_VERSION and _VERSION in head[_HEADER.size : _HEADER.size + length]


def values(log: Log, records: Records) -> Iterator[Value]:
    """Give all values of an event file; damage is told to `records`.

    Raises:
        LogError: the file cannot be read any further.
    """
    parse = _event_class().FromString
    tags: dict[bytes, str] = {}  # few, and each thousands of times
    for number, data in framed(log.pieces(), records):
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


def framed(pieces: Iterable[bytes], records: Records) -> Iterator[tuple[int, bytes]]:
    """Give each sound record and its number; one with a wrong checksum is passed over.

    Raises:
        LogError: the end of a record cannot be found, or the file ends in one.
    """
    check_sum, footer = _crc(), _FOOTER.unpack_from
    lengths = _Lengths()
    rest, number, before = b"", 0, 0
    for piece in pieces:
        data = rest + piece if rest else piece
        place, end = 0, len(data)
        while end - place >= _HEADER.size:
            start = place + _HEADER.size
            length = lengths[data[place:start]]
            if length < 0:
                raise LogError(
                    f"the length of record {number + 1} (byte {before + place:,}) is damaged; "
                    "the records before it were read"
                )
            stop = start + length
            if stop + _FOOTER.size > end:
                break
            number += 1
            content = data[start:stop]
            place = stop + _FOOTER.size
            if _mask(check_sum(content)) != footer(data, stop)[0]:
                records.damage(number, "the checksum of the record is wrong")
            elif length <= LONGEST_EVENT:
                yield number, content
        before += place
        rest = data[place:]
    if rest:
        raise LogError(
            f"the file ends inside record {number + 1}; the {number:,} records before it were read"
        )


class _Lengths(dict[bytes, int]):
    """The lengths that headers tell, -1 where one is damaged; most headers of a file are alike."""

    def __missing__(self, header: bytes) -> int:
        length, check = _HEADER.unpack(header)
        sound = _mask(_crc()(header[:8])) == check and length <= LONGEST_RECORD
        if len(self) < LENGTHS:
            self[header] = length if sound else -1
        return length if sound else -1


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


def _mask(check: int) -> int:
    """TFRecord turns and shifts its checksums, so that those of checksums differ."""
    return ((check >> 15 | check << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc() -> Any:
    try:
        from google_crc32c import value
    except ImportError:
        raise LogError(_missing("google-crc32c")) from None
    return value


def _event_class() -> type[Message]:
    """The class of an event, made of its fields."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise LogError(_missing("protobuf")) from None
    types = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="events.proto", package="events", syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            inner = kind.removesuffix("*")
            label = types.LABEL_REPEATED if kind.endswith("*") else types.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if inner in _MESSAGES:
                added.type, added.type_name = types.TYPE_MESSAGE, f".events.{inner}"
            else:
                added.type = types.Type.Value(f"TYPE_{inner.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("events.Event"))


def _missing(package: str) -> str:
    return f"reading event files needs {package}; install accumaudit with its dependencies"
