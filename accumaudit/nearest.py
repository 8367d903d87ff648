"""The known name that an unknown one resembles, for the texts of errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """`, did you mean ...?` where something known resembles the name, else nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f", did you mean `{close[0]}`?" if close else ""
