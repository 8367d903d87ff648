"""Damage that logs meet, and damage that somebody makes on purpose: each takes the bytes of a file."""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Callable
from typing import Final

NUMBER: Final = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")

SPELLINGS: Final = (
    b"NaN nan -nan NAN inf -inf +inf INF Infinity -Infinity +Infinity 1e999 -1e999 1.#INF 1.#QNAN "
    b"null None <NA> 0x1p3 1_000 1,234 .5 5. 1e-400 -0"
).split()
"""Numbers that are none, as programs write them, and some that hardly are."""

OTHER_VALUES: Final = (
    b"[1, 2]",
    b'{"a": 1}',
    b"true",
    b'"text"',
    b"[]",
    b"{}",
    b'""',
    b"'",
    b'"',
    b"\\",
    b"\t",
)

LONG: Final = 10_000_000


def truncated(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def beheaded(data: bytes, rng: random.Random) -> bytes:
    return data[rng.randrange(len(data) + 1) :]


def shuffled(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    rng.shuffle(lines)
    return b"".join(lines)


def flipped(data: bytes, rng: random.Random) -> bytes:
    flipped = bytearray(data)
    for _ in range(min(len(data), 20 + len(data) // 200)):
        flipped[rng.randrange(len(flipped))] = rng.randrange(256)
    return bytes(flipped)


def doubled(data: bytes, rng: random.Random) -> bytes:
    return data + data[: rng.randrange(len(data) + 1)] + data


def _replaced(data: bytes, rng: random.Random, share: float, new: Callable[[], bytes]) -> bytes:
    return NUMBER.sub(lambda match: new() if rng.random() < share else match[0], data)


def of_400_digits(data: bytes, rng: random.Random) -> bytes:
    return _replaced(data[:100_000], rng, 0.2, lambda: b"%d" % rng.randrange(10**399, 10**400))


def of_odd_spelling(data: bytes, rng: random.Random) -> bytes:
    return _replaced(data, rng, 0.2, lambda: rng.choice(SPELLINGS))


def of_other_types(data: bytes, rng: random.Random) -> bytes:
    return _replaced(data, rng, 0.1, lambda: rng.choice(OTHER_VALUES))


def of_great_numbers(data: bytes, rng: random.Random) -> bytes:
    return _replaced(
        data, rng, 0.3, lambda: b"%d" % rng.choice((-1, 2**31, 2**53, 2**63, 2**64 - 1, -(2**63)))
    )


def _inserted(data: bytes, rng: random.Random, line: bytes) -> bytes:
    place = data.find(b"\n", rng.randrange(len(data) + 1)) + 1
    return data[:place] + line + b"\n" + data[place:]


def with_a_long_line(data: bytes, rng: random.Random) -> bytes:
    piece = rng.choice(
        (b"x", b" ", b"9", b"{", b"|", b"=", b"\r", b"\x00", b"\x1b[", b"a=1,", b"'a': ", b"\t1")
    )
    return _inserted(data, rng, (piece * LONG)[:LONG])


def with_records_in_one_line(data: bytes, rng: random.Random) -> bytes:
    joined = data.replace(b"\n", rng.choice((b" ", b"", b", "))) or b" "
    return _inserted(data, rng, (joined * (LONG // len(joined) + 1))[:LONG])


def with_deep_nesting(data: bytes, rng: random.Random) -> bytes:
    opening, closing = rng.choice(
        ((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")"), (b"{'loss': ", b"}"), (b"- ", b""))
    )
    depth = rng.choice((1_000, 200_000))
    return _inserted(data, rng, opening * depth + b"1" + closing * depth)


def nested_deeply(data: bytes, rng: random.Random) -> bytes:
    nested = b"[" * 100_000 + b"]" * 100_000
    return _replaced(data[:100_000], rng, 3 / (1 + len(NUMBER.findall(data[:100_000]))), lambda: nested)


def with_crlf(data: bytes, rng: random.Random) -> bytes:
    return data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def with_cr_alone(data: bytes, rng: random.Random) -> bytes:
    return data.replace(b"\n", b"\r")


def in_utf_16(data: bytes, rng: random.Random) -> bytes:
    return data.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-16-le", "utf-16-be")))


def with_nuls(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + bytes(100_000) + NUMBER.sub(rb"\g<0>\0", data[place:])


def gzipped(data: bytes, rng: random.Random) -> bytes:
    return gzip.compress(data, 1)


def torn_when_gzipped(data: bytes, rng: random.Random) -> bytes:
    packed = gzip.compress(data, 1)
    return packed[: rng.randrange(len(packed))]


def flipped_when_gzipped(data: bytes, rng: random.Random) -> bytes:
    packed = bytearray(gzip.compress(data, 1))
    packed[rng.randrange(len(packed))] ^= 0xFF
    return bytes(packed)


def a_gzip_bomb(data: bytes, rng: random.Random) -> bytes:
    """A gigabyte in a megabyte, after the file itself."""
    piece = rng.choice((b"\0", b"\n", b"a\n", b" ", data[:2_000] or b"x"))
    whole = gzip.compress((piece * (2**24 // len(piece) + 1))[: 2**24])
    return gzip.compress(data, 1) + whole * 64


MUTATIONS: Final[tuple[Callable[[bytes, random.Random], bytes], ...]] = (
    truncated,
    beheaded,
    shuffled,
    flipped,
    doubled,
    of_400_digits,
    of_odd_spelling,
    of_other_types,
    of_great_numbers,
    with_a_long_line,
    with_records_in_one_line,
    with_deep_nesting,
    nested_deeply,
    with_crlf,
    with_cr_alone,
    in_utf_16,
    with_nuls,
    gzipped,
    torn_when_gzipped,
    flipped_when_gzipped,
    a_gzip_bomb,
)
