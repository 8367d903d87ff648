"""Values and places of a comparison in words."""

from __future__ import annotations

from accumaudit.comparison.model import Value


def both(a: Value, b: Value) -> tuple[str, str]:
    """Two values for people; where they differ, with as many digits as it takes to see it."""
    texts = told(a), told(b)
    return (str(a), str(b)) if texts[0] == texts[1] and a != b else texts


def told(value: Value) -> str:
    """A value for people."""
    if value is None:
        return "unknown"
    if isinstance(value, float):
        return f"{int(value):,}" if value.is_integer() and abs(value) < 1e15 else f"{value:.9g}"
    return f"{value:,}" if type(value) is int else str(value)


def count(place: float) -> str:
    """A place as a whole number."""
    return f"{place:,.0f}"


def where(axis: str, place: float, *ends: str | None) -> str:
    """`update 40`; `4,096 valid tokens (update 8 and update 4)`."""
    told_place = f"{count(place)} {axis}" if axis == "valid tokens" else f"{axis} {count(place)}"
    known = [end for end in ends if end is not None]
    if not known:
        return told_place
    return f"{told_place} ({known[0] if len(set(known)) == 1 else ' and '.join(known)})"
