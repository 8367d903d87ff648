"""A page of text on a console: lines that are never cut, in characters that the console has."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console

WIDEST: Final = 110
"""Columns of running text, at most."""

COLOURS: Final = {
    "error": "bold red",
    "warning": "bold yellow",
    "note": "bold cyan",
    "broken": "bold magenta",
}
"""Of the severities, and of a rule that broke."""

Piece = tuple[str, str]
"""Some text and its style."""


class Page:
    """Writes lines to a console; what comes from a record is made printable before."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.width: int | None = console.width if console.is_terminal else None
        """Columns of the terminal; None where the output goes elsewhere and may be as wide as it likes."""

    def line(self, *pieces: str | Piece) -> None:
        """Write one line."""
        from rich.text import Text

        text = Text()
        for piece in pieces:
            words, style = (piece, "") if isinstance(piece, str) else piece
            text.append(self._known(words), style)
        text.rstrip()
        self._console.print(text, soft_wrap=True, highlight=False)

    def wrapped(self, text: str, *, head: str = "", style: str = "", body: str = "") -> None:
        """Write running text beside its head, on as many lines as it needs, broken between words alone."""
        room = max(min(self.width or WIDEST, WIDEST) - len(head), 30)
        for row in textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]:
            self.line((head, style or body), (row, body))
            head = " " * len(head)

    def _known(self, text: str) -> str:
        encoding = self._console.encoding
        return text.encode(encoding, "backslashreplace").decode(encoding)
