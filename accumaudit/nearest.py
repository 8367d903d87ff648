"""The known name that an unknown one resembles, for the texts of errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """`, did you mean ...?` where something known resembles the name, else nothing."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=max(len(names), 1))
    if not close:
        return ""

    def likeness(one: str) -> tuple[float, int]:
        """Of two that are as close, the one with more letters in their places: ACC101 for ACC1O1."""
        ratio = difflib.SequenceMatcher(None, one, name).ratio()
        return ratio, sum(a == b for a, b in zip(one, name, strict=False))

    return f", did you mean `{max(close, key=likeness)}`?"
