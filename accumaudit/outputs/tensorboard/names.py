"""What the folders of runs are called: a run's name may be anything, a folder's may not."""

from __future__ import annotations

import hashlib
from typing import Final

LONGEST_PART: Final = 120
"""Bytes of a folder's name, escapes included."""

LONGEST: Final = 1000
"""Bytes of all parts together."""

_SAFE: Final = frozenset("-_.+=, ()[]#")
"""What stays as it is beside letters and digits. `@` tells axes apart, `~` what was cut, `%` escapes."""


def folder_name(run_id: str, optimizer: int = 0, *, axis: str = "") -> str:
    """The folder of one axis of an optimizer of a run, with slashes: `a/b`, `a/b@optimizer-1@tokens`.

    No two runs share one, and it never leads out of the folder in which it lies.
    """
    name = "/".join(_part(part) for part in run_id.split("/"))
    if len(name.encode()) > LONGEST:
        name = _digest(run_id)
    if optimizer:
        name += f"@optimizer-{optimizer}"
    return f"{name}@{axis}" if axis else name


def _part(part: str) -> str:
    text = "".join(char if char.isalnum() or char in _SAFE else _escaped(char) for char in part)
    if text.startswith("."):
        text = _escaped(".") + text[1:]
    if len(text.encode()) > LONGEST_PART:
        text = f"{_cut(text)}{_digest(part)}"
    return text or "%"


def _escaped(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


def _cut(text: str) -> str:
    return text.encode()[: LONGEST_PART // 2].decode("utf-8", "ignore")


def _digest(text: str) -> str:
    return "~" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:20]
