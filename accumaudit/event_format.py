"""TensorBoard's event files: records with checksums around protocol buffers, as they are read and written."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from google.protobuf.message import Message

LONGEST_RECORD: Final = 2**26
"""Bytes of a record above which the length is taken for damage."""

LONGEST_EVENT: Final = 2**22
"""Bytes of a record above which it is passed over: images, sounds, graphs."""

LENGTHS: Final = 10_000
"""Different lengths of records that are kept in mind."""

HEADER: Final = struct.Struct("<QI")
_LENGTH: Final = struct.Struct("<Q")
_FOOTER: Final = struct.Struct("<I")

FLOAT: Final = 1
DOUBLE: Final = 2
STRING: Final = 7
"""Types of tensors."""

SCALAR_CLASS: Final = 1
TENSOR_CLASS: Final = 2
"""Classes of data: a text is a tensor to TensorBoard, and so is a layout of charts."""

SESSION_START: Final = 1
"""Status of a session that begins: what a reader has of later steps is no more."""

# name, number, type; a message is named by its own name. The numbers are those of TensorFlow's event.proto,
# summary.proto and tensor.proto and of TensorBoard's layout.proto; unknown fields are passed over.
_MESSAGES: Final = {
    "Tensor": (
        ("dtype", 1, "int32"),
        ("content", 4, "bytes"),
        ("floats", 5, "float*"),
        ("doubles", 6, "double*"),
        ("texts", 8, "bytes*"),
    ),
    "Plugin": (("name", 1, "string"),),
    "Metadata": (("plugin", 1, "Plugin"), ("description", 3, "string"), ("data_class", 4, "int32")),
    "Value": (
        ("tag", 1, "bytes"),
        ("simple_value", 2, "float"),
        ("tensor", 8, "Tensor"),
        ("metadata", 9, "Metadata"),
    ),
    "Summary": (("value", 1, "Value*"),),
    "Session": (("status", 1, "int32"), ("message", 3, "string")),
    "Source": (("writer", 1, "string"),),
    "Event": (
        ("wall_time", 1, "double"),
        ("step", 2, "int64"),
        ("file_version", 3, "string"),
        ("summary", 5, "Summary"),
        ("session", 7, "Session"),
        ("source", 10, "Source"),
    ),
    "Lines": (("tag", 1, "string*"),),
    "Band": (("value", 1, "string"), ("lower", 2, "string"), ("upper", 3, "string")),
    "Bands": (("series", 1, "Band*"),),
    "Chart": (("title", 1, "string"), ("lines", 2, "Lines"), ("bands", 3, "Bands")),
    "Category": (("title", 1, "string"), ("chart", 2, "Chart*")),
    "Layout": (("category", 2, "Category*"),),
}


class DamageError(Exception):
    """The end of a record cannot be found; those before it were given."""


def framed(data: bytes) -> bytes:
    """A record: its length, its content, and the checksum of each."""
    length = _LENGTH.pack(len(data))
    check = _crc()
    checks = (_FOOTER.pack(_mask(check(part))) for part in (length, data))
    return b"".join((length, next(checks), data, next(checks)))


def unframed(pieces: Iterable[bytes], damage: Callable[[int, str], None]) -> Iterator[tuple[int, bytes]]:
    """Give the content of each sound record and its number, from 1; tell of one with a wrong checksum.

    Raises:
        DamageError: the end of a record cannot be found, or the file ends in one.
    """
    check_sum, footer = _crc(), _FOOTER.unpack_from
    lengths = _Lengths()
    rest, number, before = b"", 0, 0
    for piece in pieces:
        data = rest + piece if rest else piece
        place, end = 0, len(data)
        while end - place >= HEADER.size:
            start = place + HEADER.size
            length = lengths[data[place:start]]
            if length < 0:
                raise DamageError(
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
                damage(number, "the checksum of the record is wrong")
            elif length <= LONGEST_EVENT:
                yield number, content
        before += place
        rest = data[place:]
    if rest:
        raise DamageError(
            f"the file ends inside record {number + 1}; the {number:,} records before it were read"
        )


@functools.cache
def message(name: str) -> type[Message]:
    """The class of a message, made of its fields: `Event`, `Layout`."""
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"events.{name}"))


@functools.cache
def _pool() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool

    types = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="events.proto", package="events", syntax="proto2")
    for name, fields in _MESSAGES.items():
        described = file.message_type.add(name=name)
        for field, number, kind in fields:
            inner = kind.removesuffix("*")
            label = types.LABEL_REPEATED if kind.endswith("*") else types.LABEL_OPTIONAL
            added = described.field.add(name=field, number=number, label=label)
            if inner in _MESSAGES:
                added.type, added.type_name = types.TYPE_MESSAGE, f".events.{inner}"
            else:
                added.type = types.Type.Value(f"TYPE_{inner.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


class _Lengths(dict[bytes, int]):
    """The lengths that headers tell, -1 where one is damaged; most headers of a file are alike."""

    def __missing__(self, header: bytes) -> int:
        length, check = HEADER.unpack(header)
        sound = _mask(_crc()(header[:8])) == check and length <= LONGEST_RECORD
        if len(self) < LENGTHS:
            self[header] = length if sound else -1
        return length if sound else -1


def _mask(check: int) -> int:
    """TFRecord turns and shifts its checksums, so that those of checksums differ."""
    return ((check >> 15 | check << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc() -> Callable[[bytes], int]:
    from google_crc32c import value

    check: Callable[[bytes], int] = value
    return check
