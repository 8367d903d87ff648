"""Numbers as logs write them."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Final

LARGEST: Final = 2**53
"""Integers up to here are kept; a larger one counts nothing that a training does."""

_SPELLINGS: Final = {
    "nan": math.nan,
    "-nan": math.nan,
    "+nan": math.nan,
    "inf": math.inf,
    "+inf": math.inf,
    "-inf": -math.inf,
    "infinity": math.inf,
    "+infinity": math.inf,
    "-infinity": -math.inf,
}


def number(value: object) -> float | None:
    """The number that a value or its text is; None where it is none.

    `1,234.5`, `2e-05`, `nan` and `-Infinity` are numbers; true and empty texts are not.
    """
    if type(value) is float:
        return value
    if not isinstance(value, str):
        return _of_no_text(value)
    if "_" in value:
        return None
    try:
        return float(value)
    except ValueError:
        pass
    try:
        return float(value.replace(",", ""))
    except ValueError:
        return _SPELLINGS.get(value.strip().lower())


def _of_no_text(value: object) -> float | None:
    if isinstance(value, bytes):
        return number(value.decode("ascii", "replace"))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def whole(value: object) -> int | None:
    """The integer that a value or its text is; None where it is none, or beyond 53 bits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -LARGEST <= value <= LARGEST else None
    if isinstance(value, str) and len(value) < 16 and value.isdecimal():
        return int(value)
    found = number(value)
    if found is None or not math.isfinite(found) or found != int(found) or abs(found) > LARGEST:
        return None
    return int(found)


def truth(value: object) -> bool | None:
    """Whether a value, or its text, says yes: true, `1`, `"True"`; None where it says neither."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "yes", "false", "no"):
        return value.strip().lower() in ("true", "yes")
    found = number(value)
    return found == 1 if found in (0, 1) else None


def seconds(text: str) -> float | None:
    """A time such as `2023-04-18 01:47:00`, in seconds since 1970 as if it were UTC; None for other texts."""
    try:
        return datetime.fromisoformat(text.strip().replace(",", ".")).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
