"""Says on a terminal what takes longer than a second, and how far it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

PATIENCE: Final = 1.0
"""Seconds before anything is shown."""


class Progress:
    """What is being done; it shows itself once that has taken a while."""

    def __init__(self, console: Console, what: str) -> None:
        from rich.progress import Progress as Bar

        self._bar = Bar(*_columns(), console=console, transient=True)
        self._task = self._bar.add_task(what, total=None)
        self._timer = Timer(PATIENCE, self._bar.start)
        self._timer.daemon = True
        self._timer.start()

    def start(self, what: str, length: int) -> None:
        """Something of so many bytes begins."""
        self._bar.reset(self._task, description=what, total=length or None, completed=0)

    def read(self, length: int) -> None:
        """So many more bytes of it are done."""
        self._bar.advance(self._task, length)

    def close(self) -> None:
        """It is done."""
        self._timer.cancel()
        self._timer.join()
        self._bar.stop()


def _columns() -> Iterator[ProgressColumn]:
    from rich.progress import BarColumn, DownloadColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Bytes(DownloadColumn):
        """How many of them; nothing where nobody knows."""

        def render(self, task: Task) -> Text:
            return super().render(task) if task.total else Text()

    yield TextColumn("{task.description}", markup=False)
    yield BarColumn()
    yield Bytes()
    yield TimeRemainingColumn()


class Silence:
    """Where nobody looks on."""

    def start(self, what: str, length: int) -> None:
        """Something begins."""

    def read(self, length: int) -> None:
        """So much more is done."""


@contextmanager
def progress(what: str) -> Iterator[Progress | Silence]:
    """Show on a terminal how far it is."""
    if not sys.stderr.isatty():
        yield Silence()
        return
    from rich.console import Console

    shown = Progress(Console(stderr=True), what)
    try:
        yield shown
    finally:
        shown.close()
