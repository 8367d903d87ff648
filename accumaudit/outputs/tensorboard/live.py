"""Writes for TensorBoard what the service sees, while it sees it."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from accumaudit.outputs.tensorboard.runs import Run
from accumaudit.outputs.words import printable
from accumaudit.service.board import Told
from accumaudit.service.snapshot import BROKEN_OFF, FINISHED, FindingView, Point, RunView

log = logging.getLogger("accumaudit")

RUNS: Final = 256
"""Runs whose files are kept in mind; those of others are read again."""

WAITING: Final = 50_000
"""Attempts that may wait to be written; the service's own history makes up for some of the rest."""

PATIENCE: Final = 30.0
"""Seconds that are left for what waits when the service ends."""


@dataclass(slots=True)
class _News:
    """What is to be written of one run."""

    run: RunView
    points: list[Point] = field(default_factory=list)
    found: list[FindingView] = field(default_factory=list)


class Live:
    """A listener that writes event files below a folder, in a thread of its own.

    What cannot be written is tried again with the next news of the run, as far as the history of the run
    reaches back.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._news: OrderedDict[str, _News] = OrderedDict()
        self._waiting = 0
        self._closed = False
        self._changed = threading.Condition()
        self.failures = 0
        """Times that something could not be written."""
        self.trouble: str | None = None
        """Why nothing can be written now, in a sentence."""
        self._thread = threading.Thread(target=self._work, name="accumaudit-tensorboard", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> tuple[Told, ...]:
        """Nothing: what is missing is written with the next news of the run."""
        return ()

    def found(self, run: RunView, finding: FindingView) -> None:
        """Write it in words, and as a point."""
        self._tell(run, (), finding)

    def moved(self, run: RunView, points: Sequence[Point]) -> None:
        """Write the attempts, and what has become of the findings."""
        self._tell(run, points)

    def close(self) -> None:
        """Write what waits, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(PATIENCE)

    def _tell(self, run: RunView, points: Sequence[Point], *found: FindingView) -> None:
        with self._changed:
            news = self._news.setdefault(run.run_id, _News(run))
            room = max(WAITING - self._waiting, 0)
            news.run = run
            news.found += found
            news.points += points[:room]
            self._waiting += len(points[:room])
            self._changed.notify()

    def _work(self) -> None:
        while (news := self._next()) is not None:
            self._try(news)

    def _next(self) -> _News | None:
        with self._changed:
            self._changed.wait_for(lambda: self._news or self._closed)
            if not self._news:
                return None
            _, news = self._news.popitem(last=False)
            self._waiting -= len(news.points)
            return news

    def _try(self, news: _News) -> None:
        try:
            self._write(news)
        except Exception as error:  # whatever it is, the other runs are still written
            self._runs.pop(news.run.run_id, None)  # what is there is read again
            self.failures += 1
            why = error.strerror if isinstance(error, OSError) else repr(error)
            trouble = printable(f"{self._folder}: TensorBoard's files cannot be written: {why}")
            if self.trouble is None:
                log.warning("%s", trouble)
            self.trouble = trouble
        else:
            self.trouble = None

    def _write(self, news: _News) -> None:
        run_id = news.run.run_id
        run = self._runs.pop(run_id, None) or Run(self._folder, run_id)
        self._runs[run_id] = run
        while len(self._runs) > RUNS:
            self._runs.popitem(last=False)
        run.take(news.run, news.points, news.found)
        if news.run.state in (FINISHED, BROKEN_OFF):
            run.finish(news.run)
