"""Errors in the service itself, which should not be: they are counted and told, and the service goes on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from accumaudit.outputs.words import printable

log = logging.getLogger("accumaudit")

TOLD: Final = 600.0
"""Seconds that an error is told after it was seen last."""


class Troubles:
    """Errors by what was being done."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._seen: dict[str, tuple[float, str]] = {}

    @contextmanager
    def caught(self, doing: str) -> Iterator[None]:
        """Go on behind the block where it raises; the log has where, once for each kind of error."""
        try:
            yield
        except Exception as error:
            self.count += 1
            text = printable(f"{doing} failed ({type(error).__name__}: {error})"[:1000])
            if self._seen.get(doing, (0.0, ""))[1] != text:
                log.exception("%s", text)
            self._seen[doing] = self._clock(), text

    @property
    def sentences(self) -> list[str]:
        """What was seen lately."""
        since = self._clock() - TOLD
        return [text for seen, text in self._seen.values() if seen > since]
