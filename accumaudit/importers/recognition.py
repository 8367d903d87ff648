"""Tells what a file is by what it holds, never by its name alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from accumaudit.importers.appearance import describe
from accumaudit.importers.format import Format
from accumaudit.importers.reading.log import SEARCHED, Log, LogError

_LEDGER: Final = re.compile(rb'"record"\s*:\s*"(?:run|update|mark)"')
_BINARY: Final = re.compile(rb"[\x01-\x06\x0e-\x1a\x7f]")


@dataclass(frozen=True, slots=True)
class Recognised:
    """What a file is: a ledger, a log of some format, or no log and what it looks like instead."""

    format: Format | None = None
    is_ledger: bool = False
    looks_like: str = ""
    is_text: bool = True


def recognise(log: Log, formats: tuple[Format, ...]) -> Recognised:
    """Look at the beginning of a file, and for a text at as much as it takes to meet a record."""
    head = log.head
    if head.startswith((b"PAR1", b"\x28\xb5\x2f\xfd")) or _LEDGER.search(head):
        return Recognised(is_ledger=True)
    for format_ in formats:
        if format_.begins is not None and format_.begins(head):
            return Recognised(format_)
    if _is_binary(head):
        return Recognised(looks_like="a binary file", is_text=False)
    of_text = _format_of_text(log, formats)
    return Recognised(of_text) if of_text is not None else Recognised(looks_like=describe(log))


def _is_binary(head: bytes) -> bool:
    """Terminal codes and a few NUL bytes occur in logs; other control characters hardly do."""
    return len(_BINARY.findall(head)) > len(head) // 100


def _format_of_text(log: Log, formats: tuple[Format, ...]) -> Format | None:
    """The format of the first records; the earlier in the list where two engines write at once.

    One of the two may begin a little sooner, so the block behind the first record is looked at as well.
    """
    first: Format | None = None
    try:
        for _, block in log.blocks(SEARCHED):
            candidates = formats if first is None else formats[: formats.index(first)]
            found = next((format_ for format_ in candidates if format_.is_in(block)), None)
            if first is not None:
                return found or first
            first = found
    except LogError:
        pass  # what stands before the damage was looked at
    return first
