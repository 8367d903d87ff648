"""Writes event files, in the bytes of the format: no library of TensorBoard is needed."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import google_crc32c

VERSION: Final = b"brain.Event:2"

Scalar = tuple[int, str, float]
"""Step, tag and value."""


def write_events(
    path: Path, scalars: Iterable[Scalar], *, start: float = 1000.0, tensors: bool = False
) -> Path:
    """Write a file with one event a scalar, a second apart.

    Args:
        tensors: the values are tensors, as TensorFlow 2 writes them.
    """
    value = tensor if tensors else simple
    events = [
        event(start + second, step, value(tag, number)) for second, (step, tag, number) in enumerate(scalars)
    ]
    path.write_bytes(b"".join(map(framed, [version(start), *events])))
    return path


def framed(data: bytes) -> bytes:
    """A record with its length and its two checksums."""
    length = struct.pack("<Q", len(data))
    return length + _check(length) + data + _check(data)


def version(time: float) -> bytes:
    """The event that begins a file."""
    return _field(1, 1) + struct.pack("<d", time) + _bytes(3, VERSION)


def event(time: float, step: int, *values: bytes) -> bytes:
    """An event with some values."""
    summary = b"".join(_bytes(1, value) for value in values)
    head = _field(1, 1) + struct.pack("<d", time) + _field(2, 0) + _varint(step)
    return head + _bytes(5, summary)


def simple(tag: str, number: float) -> bytes:
    """A value that is a float."""
    return _bytes(1, tag.encode()) + _field(2, 5) + struct.pack("<f", number)


def tensor(tag: str, number: float) -> bytes:
    """A value that is a tensor of one float, in its raw bytes."""
    return _bytes(1, tag.encode()) + _bytes(
        8, _field(1, 0) + _varint(1) + _bytes(4, struct.pack("<f", number))
    )


def text(tag: str, content: str) -> bytes:
    """A value that is a text."""
    return _bytes(1, tag.encode()) + _bytes(8, _field(1, 0) + _varint(7) + _bytes(8, content.encode()))


def steps(tag: str, numbers: Sequence[int], value: float = 2.5) -> list[Scalar]:
    """The same value of one tag at some steps."""
    return [(number, tag, value) for number in numbers]


def _check(data: bytes) -> bytes:
    check = google_crc32c.value(data)
    return struct.pack("<I", ((check >> 15 | check << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _field(number: int, wire_type: int) -> bytes:
    return bytes([number << 3 | wire_type])


def _bytes(number: int, data: bytes) -> bytes:
    return _field(number, 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    number &= 2**64 - 1
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])
