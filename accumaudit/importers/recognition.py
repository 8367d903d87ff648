"""Tells what a file is by what it holds; its name can only tell that what it holds is quoted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from accumaudit.importers.appearance import describe
from accumaudit.importers.format import Format
from accumaudit.importers.reading import table
from accumaudit.importers.reading.log import SEARCHED, Log, LogError

QUOTES: Final = "it quotes a log, as documents, programs and data sets do; rename it if it is one itself"
"""What is said of a text that holds records, and is no log."""

_LEDGER: Final = re.compile(rb'"record"\s*:\s*"(?:run|update|mark)"')
_BINARY: Final = re.compile(rb"[\x01-\x06\x0e-\x1a\x7f]")
_QUOTING: Final = frozenset(
    (
        *(".md", ".markdown", ".rst", ".adoc", ".tex", ".html", ".py", ".pyi", ".sh", ".diff", ".patch"),
        *(".c", ".h", ".cc", ".cpp", ".cu", ".js", ".ts", ".rs", ".go"),
    )
)
"""How names of documents and of programs end."""

_ASKED: Final = frozenset(
    ("messages", "conversations", "prompt", "instruction", "question", "text", "content")
)
"""What the fields of data sets are called that hold what people or models wrote."""


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
    if of_text is None:
        return Recognised(looks_like=describe(log))
    return Recognised(looks_like=QUOTES) if _only_quotes(log) else Recognised(of_text)


def _only_quotes(log: Log) -> bool:
    """Programs can be told by their names alone: some logs begin with the source of their training."""
    if log.path.suffix.lower() in _QUOTING:
        return True
    return any(_ASKED & found.keys() for found in table.first_objects(log.head)[:1])


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
